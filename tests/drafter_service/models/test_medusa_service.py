"""A drafter service with Medusa heads, which drafts from the hidden states in verdicts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.rpc import error_details_pb2

from drafter_service.models.loaded_heads import load_heads
from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1.drafter_service_pb2 import ModelLoad, ModelLoadState
from draftwire.v1.verdict_pb2 import HiddenState, VerdictBatch
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.handshake import CAPABILITY_HIDDEN_STATES
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.drafter.verifier_side import PATIENCE, Request, VerifierSide, detail
from tests.harness.models.tiny_checkpoint import VOCABULARY, write_checkpoint

HIDDEN = 8
PROMPT = [5, 9, 14, 23]
CAPABLE = [CAPABILITY_HIDDEN_STATES]


def write_heads(directory: Path, *, offset: int = 0) -> Path:
    """Writes two heads. For a state whose largest element is i, they predict tokens i + offset and i + offset + 100."""
    heads = MedusaHeads(2, 0, HIDDEN, VOCABULARY).requires_grad_(False)
    for index, head in enumerate(heads):
        head[0].weight.zero_()
        head[0].weight[offset + 100 * index : offset + 100 * index + HIDDEN] = torch.eye(HIDDEN)
    heads.save(directory, "target", torch.float32)
    return directory


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture
async def changes(heads: Path) -> AsyncIterator[ModelChanges]:
    settings = DrafterSettings(medusa_heads=str(heads), dtype="float32")
    made = ModelChanges(settings, Shutdown(), load_drafter)
    async with made.running():
        yield made


@pytest.fixture
async def verifier(changes: ModelChanges) -> AsyncIterator[VerifierSide]:
    async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
        side = VerifierSide(stream)
        await side.hello(capabilities=CAPABLE)
        yield side
        await side.end()


def state(best: int, **changes: Any) -> HiddenState:
    values = torch.zeros(HIDDEN)
    values[best] = 20.0
    return HiddenState(**({"dtype": "float32", "values": values.numpy().tobytes()} | changes))


async def commit(verifier: VerifierSide, sequence_id: int, token: int, hidden_state: HiddenState | None) -> None:
    mirror = verifier.mirrors[sequence_id]
    mirror.tree.commit([token])
    mirror.tokens.append(token)
    verdict = verifier.verdict(sequence_id, len(mirror.tokens), [token])
    if hidden_state is not None:
        verdict.hidden_state.CopyFrom(hidden_state)
    await verifier.stream.write(Request(verdicts=VerdictBatch(verdicts=[verdict])))


async def loaded(load: ModelLoad) -> ModelLoad:
    """Waits for a load to end."""
    async with asyncio.timeout(PATIENCE):
        while load.state == ModelLoadState.MODEL_LOAD_STATE_LOADING:  # noqa: ASYNC110 - its end has no event
            await asyncio.sleep(0.01)
    return load


async def test_it_drafts_from_what_verdicts_bring(verifier: VerifierSide, changes: ModelChanges) -> None:
    await verifier.open(1, PROMPT)
    await verifier.until(lambda: verifier.opened == [(1, 1)])
    await commit(verifier, 1, 7, state(3))
    await verifier.until(lambda: verifier.mirrors[1].tree.size)
    assert verifier.mirrors[1].best_path() == [3, 103]
    half = (20 * torch.eye(HIDDEN)[4]).bfloat16().view(torch.uint8).numpy().tobytes()
    await commit(verifier, 1, 3, state(4, dtype="bfloat16", values=half))
    await verifier.until(lambda: len(verifier.mirrors[1].tree.root.children) > 1)
    assert verifier.mirrors[1].best_path()[0] == 103
    status = await changes.status()
    assert status is not None
    assert (status.open_sequences, status.total_slots) == (1, 0)
    assert status.drafted_nodes >= 3


async def test_what_it_says_of_itself(changes: ModelChanges, heads: Path) -> None:
    async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
        side = VerifierSide(stream)
        peer = await side.hello(capabilities=CAPABLE)
        await side.end()
    assert set(peer.capabilities) == {"ping", "gathering", "hidden-states"}
    assert (peer.model.model_id, peer.model.architecture) == (heads.name, "Medusa")
    assert (peer.model.vocab_size, peer.model.tokenizer_sha256) == (VOCABULARY, "")
    assert peer.limits.max_sequence_tokens > 100_000


async def test_a_verifier_that_sends_no_states_is_refused(changes: ModelChanges) -> None:
    async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
        with pytest.raises(StreamBroken, match="lacks the capability hidden-states") as caught:
            await VerifierSide(stream).hello()
            await stream.read()
    assert (caught.value.code, caught.value.reason_name) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "PROTOCOL_MISMATCH",
    )


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (state(1, dtype="int64"), "hidden_state.dtype"),
        (state(1, dtype=""), "hidden_state.dtype"),
        (state(1, values=b""), "hidden_state.values"),
        (state(1, values=b"\0" * (4 * HIDDEN + 4)), "hidden_state.values"),
        (state(1, dtype="bfloat16"), "hidden_state.values"),
        (None, "hidden_state"),
    ],
)
async def test_a_bad_state_is_the_fault_of_its_sequence(
    verifier: VerifierSide, bad: HiddenState | None, field: str
) -> None:
    for sequence_id in (1, 2):
        await verifier.open(sequence_id, PROMPT)
        await commit(verifier, sequence_id, 7, state(3))
    await commit(verifier, 1, 8, bad)
    reason, error = await verifier.error(1)
    assert reason == "INVALID_FIELD"
    violations = detail(error.status, error_details_pb2.BadRequest).field_violations
    assert [violation.field for violation in violations] == [field]
    await commit(verifier, 2, 8, state(5))
    await verifier.until(lambda: verifier.mirrors[2].best_path()[:1] == [5])


async def test_a_verdict_from_before_the_verifier_knew_may_lack_it(verifier: VerifierSide) -> None:
    await verifier.open(1, PROMPT)
    await commit(verifier, 1, 7, None)
    await commit(verifier, 1, 8, state(2))
    await verifier.until(lambda: verifier.mirrors[1].tree.size)
    assert verifier.mirrors[1].best_path() == [2, 102]
    assert not verifier.errors


async def test_states_that_are_no_numbers_draft_nothing(verifier: VerifierSide) -> None:
    await verifier.open(1, PROMPT)
    await commit(verifier, 1, 7, state(1, values=torch.full((HIDDEN,), torch.nan).numpy().tobytes()))
    await verifier.ping(1)
    await verifier.until(lambda: verifier.pongs == [1])
    assert verifier.mirrors[1].tree.size == 0
    await commit(verifier, 1, 7, state(1))
    await verifier.until(lambda: verifier.mirrors[1].tree.size)


async def test_other_heads_are_loaded_while_it_drafts(changes: ModelChanges, tmp_path: Path) -> None:
    await loaded(await changes.load(str(write_heads(tmp_path / "new", offset=10)), ""))
    assert changes.serving.hello.model.model_id == "new"
    refused = await loaded(await changes.load(str(tmp_path / "none"), ""))
    assert refused.state == ModelLoadState.MODEL_LOAD_STATE_FAILED
    assert "no such directory" in refused.error.message
    assert changes.serving.hello.model.model_id == "new"


def test_bad_heads_end_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"heads .*: .*config\.json"):
        load_drafter(DrafterSettings(medusa_heads=str(tmp_path)))


def test_a_tokenizer_beside_the_heads_is_told(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    write_heads(tmp_path)
    assert load_heads(DrafterSettings(medusa_heads=str(tmp_path))).info.tokenizer_sha256
