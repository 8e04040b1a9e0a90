"""Scripted drafters that know the text of a stand-in's target, and the network that an adapter's pool finds them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire_core.adapters.common import pool_thread
from draftwire_core.pool.standing.pause_policy import PausePolicy
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_vllm import VOCABULARY, text_after
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, batch, hello

Listen = Callable[..., ScriptedDrafter]
"""Puts a scripted drafter on an address; by default one that knows the target's text."""


def pool_network(patch: pytest.MonkeyPatch) -> Network:
    """Returns the network that pools find their drafters on. None of them is ever paused."""
    made = Network()
    patch.setattr(pool_thread, "drafter_channels", lambda channels, on_message: made.connect)
    patch.setattr(PausePolicy, "paused", False)
    return made


@contextmanager
def listening(network: Network) -> Iterator[Listen]:
    """Gives what puts drafters on a network; in the end none may have failed."""
    ScriptedDrafter.failed.clear()

    def put(address: str, answer: Callable[[Opening], Any] | None = None, **fields: Any) -> ScriptedDrafter:
        drafter = ScriptedDrafter(answer or knowing, greeting=greeting(), **fields)
        network.listen(address, drafter.converse)
        return drafter

    yield put
    assert not ScriptedDrafter.failed


def greeting(**changes: Any) -> Any:
    """Returns a handshake that is compatible with the stand-ins' target."""
    fields: dict[str, Any] = {
        "model": ModelInfo(model_id="scripted", vocab_size=VOCABULARY),
        "limits": Limits(max_sequences=64, max_tree_nodes=64, max_message_bytes=1 << 20, max_sequence_tokens=1 << 20),
    }
    return hello(**fields | changes)


def knowing(opening: Opening) -> Any:
    """Proposes the tokens that the target will generate."""
    return [batch(opening.proposal(text_after(opening.tokens, 3)))]


def wrong(opening: Opening) -> Any:
    """Proposes a token that the target will not generate."""
    return [batch(opening.proposal([(text_after(opening.tokens, 1)[0] + 1) % VOCABULARY]))]
