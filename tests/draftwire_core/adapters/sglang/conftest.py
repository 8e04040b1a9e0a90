"""Drafts whose pool reaches scripted drafters in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftwire import Client
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.sglang.remote_drafts import RemoteDrafts
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.runtime.process.settings import settings_from_environment
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_sglang import FakeSglang
from tests.harness.stand_ins.fake_vllm import VOCABULARY, text_after
from tests.harness.stand_ins.pool_drafters import Listen, listening, pool_network
from tests.harness.stand_ins.scripted_drafter import Opening, batch

MakeSglang = Callable[..., FakeSglang]
Connect = Callable[[FakeSglang], Client]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """The network on which drafters listen."""
    return pool_network(monkeypatch)


@pytest.fixture
def listen(network: Network) -> Iterator[Listen]:
    """Puts a scripted drafter on an address; by default one that knows the target's text."""
    with listening(network) as put:
        yield put


@pytest.fixture
def sglang(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeSglang]:
    """Creates fake SGLangs with drafters at some addresses."""
    made: list[RemoteDrafts] = []

    def make(*drafters: str, trees: bool = True, overlap: bool = False, **settings: object) -> FakeSglang:
        monkeypatch.setenv("DRAFTWIRE_SGLANG_LISTEN", "127.0.0.1:0")
        monkeypatch.setenv("DRAFTWIRE_SGLANG_DRAFTER", ",".join(drafters))
        for name, value in settings.items():
            monkeypatch.setenv(f"DRAFTWIRE_SGLANG_{name.upper()}", str(value))
        info = ModelInfo(model_id="target", vocab_size=VOCABULARY, context_length=4096)
        drafts = RemoteDrafts(settings_from_environment(SglangSettings), info, 16, 5, trees=trees)
        drafts.pool.start()
        made.append(drafts)
        return FakeSglang(drafts, 5, overlap=overlap)

    yield make
    for each in made:
        each.pool.stop()
        assert not each.faults


@pytest.fixture
def client() -> Iterator[Connect]:
    """Returns the SDK's client of the adapter's pool."""
    made: list[Client] = []

    def connect(fake: FakeSglang) -> Client:
        made.append(Client(fake.drafts.pool.address))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def unsure(opening: Opening) -> Any:
    """Proposes two tokens, of which the less likely one, with what follows it, is what the target will generate."""
    first, second = text_after(opening.tokens, 2)
    other = (first + 1) % VOCABULARY
    parents, log_probs = [0, 0, opening.next_id + 1], [-0.4, -1.2, -0.1]
    return [batch(opening.proposal([other, first, second], parent_ids=parents, log_probs=log_probs))]
