"""A load ends with the calls that wait for it; the model before it goes on being served."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from drafter_service.models import running_load
from drafter_service.models.loaded_model import LoadedModel
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc
from draftwire.v1.drafter_service_pb2 import LoadModelRequest
from draftwire_core.engine.checkpoint.load_errors import abandoned_by, stop_if_abandoned
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.drafter_service.conftest import Loader
from tests.harness.drafter.model_loads import LOADING, PROMPT, SERVING, eventually, info, load, loaded
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

FAILED = drafter_service_pb2.MODEL_LOAD_STATE_FAILED


class Weights:
    """What a load holds until it has ended."""


class Steps(Loader):
    """Loads the first model like a `Loader`; the next ones in steps that go on until they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.held: weakref.WeakSet[Weights] = weakref.WeakSet()

    def __call__(self, settings: DrafterSettings) -> LoadedModel:
        weights = Weights()
        self.held.add(weights)
        if not self.let.is_set():
            self.entered.set()
            ends = time.monotonic() + PATIENCE
            while not self.let.wait(0.001):
                assert time.monotonic() < ends
                stop_if_abandoned()
        return super().__call__(settings)

    async def enters(self) -> None:
        """Returns once a load is in its steps."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)
        self.entered.clear()


@pytest.fixture
def loader() -> Steps:
    return Steps()


@pytest.fixture
async def stub(drafter: InProcessDrafter, loader: Steps) -> AsyncIterator[Any]:
    """Calls the drafter as a client does. Loads go on until they are let."""
    server = ServiceServer(ServiceSettings())
    server.add(drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server, drafter.servicer)
    await server.start()
    loader.let.clear()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield drafter_service_pb2_grpc.DrafterServiceStub(channel)
    finally:
        loader.let.set()
        await server.stop(0)


async def ended(drafter: InProcessDrafter) -> Any:
    await eventually(lambda: drafter.changes.last_load.state != LOADING)  # type: ignore[union-attr]
    return (await info(drafter)).last_load


def waiting(stub: Any, model: Path, request_id: str = "", timeout: float = PATIENCE) -> Any:
    """A call that waits for its load, begun."""
    return stub.LoadModel(LoadModelRequest(model=str(model), request_id=request_id, wait=True), timeout=timeout)


@pytest.mark.parametrize("leaves", [True, False], ids=["the caller leaves", "the deadline passes"])
async def test_a_load_ends_with_its_call(
    stub: Any, drafter: InProcessDrafter, other: Path, loader: Steps, leaves: bool
) -> None:
    before = (await info(drafter)).info
    async with drafter.connected() as verifier:
        gc.collect()
        gc.disable()
        try:
            with capture_logs() as logs:
                call = waiting(stub, other, timeout=PATIENCE if leaves else 1.0)
                await loader.enters()
                if leaves:
                    call.cancel()
                with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                    await call
                last = await ended(drafter)
            assert not loader.held
        finally:
            gc.enable()
        assert (last.state, last.error.code) == (FAILED, grpc.StatusCode.CANCELLED.value[0])
        assert last.error.message == "loading was cancelled, since its caller has left"
        said = [
            (line["event"], line.get("model"), line["log_level"]) for line in logs if line["event"] != "call finished"
        ]
        assert said == [("loading cancelled", str(other), "info")]
        assert (await info(drafter)).info == before
        await verifier.open(1, PROMPT)
        await verifier.until(lambda: verifier.mirrors[1].tree.size >= 4)
    loader.let.set()
    assert (await loaded(drafter, other)).state == SERVING  # it is not busy
    assert drafter.changes.loads == {"cancelled": 1, "done": 1}


async def test_a_call_that_waits_gets_the_end(stub: Any, other: Path, tmp_path: Path, loader: Steps) -> None:
    loader.let.set()
    assert (await waiting(stub, other, "one")).load.state == SERVING
    assert (await waiting(stub, tmp_path / "missing")).load.state == FAILED
    assert (await waiting(stub, other, "one")).load.state == SERVING
    assert len(loader.settings) == 3


async def test_a_load_lives_as_long_as_one_of_its_calls(
    stub: Any, drafter: InProcessDrafter, other: Path, loader: Steps
) -> None:
    first, second = waiting(stub, other, "one"), waiting(stub, other, "one")
    await loader.enters()
    await eventually(lambda: drafter.changes._loading._waiting == 2)  # type: ignore[union-attr]
    first.cancel()
    await eventually(lambda: drafter.changes._loading._waiting == 1)  # type: ignore[union-attr]
    assert drafter.changes.last_load.state == LOADING  # type: ignore[union-attr]
    second.cancel()
    assert (await ended(drafter)).state == FAILED
    loader.let.set()
    assert (await waiting(stub, other, "one")).load.state == SERVING  # nothing is left of the first
    assert len(loader.settings) == 2  # the first model's and this one's


async def test_a_call_that_does_not_wait_keeps_it(
    stub: Any, drafter: InProcessDrafter, other: Path, loader: Steps
) -> None:
    call = waiting(stub, other, "one")
    await loader.enters()
    assert (await load(drafter, other, "one")).state == LOADING
    call.cancel()
    await eventually(lambda: drafter.changes._loading._waiting == 0)  # type: ignore[union-attr]
    loader.let.set()
    assert (await ended(drafter)).state == SERVING


async def test_a_load_that_takes_too_long(
    stub: Any, drafter: InProcessDrafter, other: Path, loader: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_load, "MOST_SECONDS", 0.05)
    await load(drafter, other)
    last = await ended(drafter)
    assert (last.error.code, last.error.message) == (
        grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
        "loading was cancelled after 0.05 s",
    )


async def test_another_load_waits_for_the_end_of_a_cancelled_one(
    services: Services, checkpoint: Path, other: Path
) -> None:
    """Memory has room for one more model."""
    loader = Loader()  # it does not stop
    async with services.in_process_drafter(checkpoint, load=loader) as drafter:
        loader.let.clear()
        call = asyncio.create_task(drafter.changes.load(str(other), "one", wait=True))
        await eventually(lambda: len(loader.settings) == 2)
        call.cancel()
        await asyncio.wait([call])
        for request_id in ("one", "two"):
            with pytest.raises(ServiceError) as caught:
                await load(drafter, other, request_id)
            assert caught.value.reason_name == "BUSY"
        loader.let.set()
        assert (await ended(drafter)).error.code == grpc.StatusCode.CANCELLED.value[0]
        assert drafter.changes.serving.hello.model.model_id == checkpoint.name


async def test_a_call_that_waits_does_not_delay_the_end(services: Services, checkpoint: Path, other: Path) -> None:
    loader = Loader()
    async with services.in_process_drafter(checkpoint, load=loader) as drafter:
        loader.let.clear()
        call = asyncio.create_task(drafter.changes.load(str(other), "", wait=True))
        await eventually(lambda: len(loader.settings) == 2)
        await drafter.servicer.end_sessions()
        assert (await call).error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        loader.let.set()
        await eventually(lambda: drafter.changes._loading is None)


class Counted(threading.Event):
    """Is set from some question on."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self.asked = 0
        self._after = after

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > self._after


def test_loading_ends_at_each_of_its_steps(checkpoint: Path) -> None:
    """It asks for each tensor that it reads and each that it packs, and for each pass of its tests."""
    settings = DrafterSettings(model=str(checkpoint), kv_slots=256, threads=1)
    every = Counted(float("inf"))
    with abandoned_by(every):
        load_drafter(settings)
    assert every.asked > 200
    for after in range(0, every.asked - 40, 11):  # the number of timed passes differs
        with abandoned_by(Counted(after)), pytest.raises(StartupError, match="given up"):
            load_drafter(settings)
