"""Features that a verifier sends: what a drafter refuses, and that it loses nothing else."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1.features_pb2 import FeatureBatch, GetFeatureWeightsRequest, TokenFeatures
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.rpc.handshake import CAPABILITY_FEATURES
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.drafter.verifier_side import PATIENCE, Request, VerifierSide
from tests.harness.engine.engines import VOCABULARY
from tests.harness.models.eagle_checkpoints import write_eagle

WIDTH = 64
SLOTS = 500
PROMPT = [5, 9, 14, 23]
CAPABLE = [CAPABILITY_FEATURES]


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eagle(tmp_path_factory.mktemp("eagle"))


@pytest.fixture
async def changes(eagle: Path) -> AsyncIterator[ModelChanges]:
    settings = DrafterSettings(model=str(eagle), dtype="float32", kv_slots=SLOTS, feature_dtype="float16")
    made = ModelChanges(settings, Shutdown(), load_drafter)
    async with made.running():
        yield made


@pytest.fixture
async def verifier(changes: ModelChanges) -> AsyncIterator[VerifierSide]:
    async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
        side = VerifierSide(stream, VOCABULARY)
        hello = await side.hello(capabilities=CAPABLE)
        assert CAPABILITY_FEATURES in hello.capabilities
        assert (list(hello.features.layers), hello.features.width, hello.features.dtype) == (
            [0, 1, 2],
            WIDTH,
            "float16",
        )
        yield side
        await side.end()


async def send(verifier: VerifierSide, sequence_id: int, start: int, values: bytes, epoch: int = 1) -> None:
    features = TokenFeatures(sequence_id=sequence_id, epoch=epoch, first_position=start, values=values)
    await verifier.stream.write(Request(features=FeatureBatch(features=[features])))


async def test_it_drafts_once_the_features_are_there(verifier: VerifierSide) -> None:
    await verifier.open(1, PROMPT)
    await send(verifier, 1, 0, bytes(2 * 2 * WIDTH))
    await send(verifier, 1, 2, bytes(2 * WIDTH))
    await verifier.until(lambda: verifier.mirrors[1].tree.size > 0)
    await verifier.commit({1: [7, 8]})
    await send(verifier, 1, 3, bytes(2 * 2 * WIDTH))
    await verifier.until(lambda: verifier.mirrors[1].tree.size > 0)


@pytest.mark.parametrize(
    ("start", "values", "field"),
    [
        (0, bytes(3), "features.values"),
        (0, b"", "features.values"),
        (199, bytes(2 * 2 * WIDTH), "features.first_position"),
    ],
)
async def test_bad_features_close_their_sequence_only(
    verifier: VerifierSide, start: int, values: bytes, field: str
) -> None:
    for sequence_id in (1, 2):
        await verifier.open(sequence_id, PROMPT, max_length=200)
    await send(verifier, 1, start, values)
    reason, error = await verifier.error(1)
    assert reason == "INVALID_FIELD"
    assert field in error.status.message
    await send(verifier, 2, 0, bytes(3 * 2 * WIDTH))
    await verifier.until(lambda: verifier.mirrors[2].tree.size > 0)


async def test_a_position_that_the_drafter_cannot_follow_closes_its_sequence_only(verifier: VerifierSide) -> None:
    await verifier.open(1, PROMPT, max_length=2**32 - 1)
    await verifier.open(2, PROMPT, max_length=200)
    await send(verifier, 1, 2**32 - 3, bytes(2 * WIDTH))
    reason, error = await verifier.error(1)
    assert reason == "CONTEXT_EXCEEDED"
    assert "features.first_position" in error.status.message
    await send(verifier, 2, 0, bytes(3 * 2 * WIDTH))
    await verifier.until(lambda: verifier.mirrors[2].tree.size > 0)


async def test_features_that_wait_for_the_drafter_are_bounded_by_its_kv_cache(changes: ModelChanges) -> None:
    going_on = threading.Event()
    with pytest.raises(StreamBroken, match="too far behind"):
        async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
            side = VerifierSide(stream, VOCABULARY)
            await side.hello(capabilities=CAPABLE)
            await side.open(1, PROMPT, max_length=400)
            await side.ping(1)
            await side.until(lambda: side.pongs)
            blocked = asyncio.ensure_future(changes.serving._drafting.call(lambda: going_on.wait(PATIENCE)))
            try:
                for _ in range(10 * SLOTS // 250):
                    await send(side, 1, 0, bytes(250 * 2 * WIDTH))
                async with asyncio.timeout(PATIENCE / 2):
                    await side.until(lambda: False)
            finally:
                going_on.set()
                await blocked


async def test_features_of_an_unknown_or_ended_opening(verifier: VerifierSide) -> None:
    await send(verifier, 9, 0, bytes(2 * WIDTH))
    assert (await verifier.error(9))[0] == "UNKNOWN_SEQUENCE"
    await verifier.open(1, PROMPT, epoch=3)
    await send(verifier, 1, 0, bytes(2 * WIDTH), epoch=2)
    await send(verifier, 1, 0, bytes(3 * 2 * WIDTH), epoch=3)
    await verifier.until(lambda: verifier.mirrors[1].tree.size > 0)
    assert not verifier.errors, "those of an earlier opening are stale"


async def test_a_verifier_without_features_is_refused(changes: ModelChanges) -> None:
    with pytest.raises(StreamBroken, match="lacks the capability features") as caught:
        async with in_process_call(DrafterServicer(changes, 4).converse) as stream:
            await VerifierSide(stream).hello()
    assert caught.value.reason_name == "PROTOCOL_MISMATCH"


async def test_a_draft_model_takes_no_features(checkpoint: Path) -> None:
    settings = DrafterSettings(model=str(checkpoint), dtype="float32", kv_slots=500)
    made = ModelChanges(settings, Shutdown(), load_drafter)
    async with made.running():
        with pytest.raises(StreamBroken, match=r"features: must not be sent: .* drafts without them"):
            async with in_process_call(DrafterServicer(made, 4).converse) as stream:
                side = VerifierSide(stream)
                await side.hello(capabilities=CAPABLE)
                await send(side, 1, 0, b"")
                await side.until(lambda: False)


async def test_the_weights_of_its_map(changes: ModelChanges) -> None:
    servicer = DrafterServicer(changes, 4)
    features = changes.serving.hello.features

    async def fetch(sha256: str) -> bytearray:
        request, weights = GetFeatureWeightsRequest(weights_sha256=sha256), bytearray()
        async for part in servicer.GetFeatureWeights(request, None):  # type: ignore[arg-type]
            weights += part.values
        return weights

    shape = FeatureShape(3, features.hidden_size, features.width)
    assert features.weights_dtype == "float32"
    dtype = torch.float32
    assert FeatureMap.of(shape, await fetch(features.weights_sha256), dtype).digest() == features.weights_sha256
    with pytest.raises(ServiceError, match="weights_sha256: must be that of the features"):
        await fetch("0" * 64)
