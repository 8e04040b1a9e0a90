"""A drafter without sockets over a tiny random model."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drafter_service.models import model_changes
from drafter_service.models.loaded_model import LoadedModel, model_info
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1 import drafter_service_pb2
from service_runtime.process.lifecycle import Shutdown
from service_runtime.process.startup_error import StartupError
from service_runtime.rpc.in_process_stream import in_process_call
from speculative_engine.checkpoint.checkpoint import Checkpoint
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.planning.step_cost import StepCost
from tests.harness.drafter.verifier_side import VerifierSide
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from tests.harness.verifier.fixtures import timed_twice  # noqa: F401
from tests.harness.waiting import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthens the time limit, so that a test fails if a change waits until the limit unnecessarily."""
    monkeypatch.setattr(model_changes, "_MOVE_SECONDS", 10 * PATIENCE)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory)


class Loader:
    """Loads tiny models like the service, without the self-test and only when allowed; keeps no reference to them."""

    def __init__(self) -> None:
        self.settings: list[DrafterSettings] = []
        self.let = threading.Event()
        self.let.set()
        self.fault: BaseException | None = None

    def __call__(self, settings: DrafterSettings) -> LoadedModel:
        self.settings.append(settings)
        assert self.let.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault
        try:
            checkpoint = Checkpoint.find(settings.model, hub=settings.allow_hub_models)
            model = PackedModel.load(checkpoint, slots=settings.kv_slots, dtype="float32")
        except ModelLoadError as error:
            raise StartupError(str(error)) from error
        return LoadedModel(model, model_info(model, "our-hash", bit_exact=True), StepCost([1], [0.001]))


class Held:
    """A model whose forward pass blocks until it is released."""

    def __init__(self, model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self._let = threading.Event()
        self._forward = model.forward
        monkeypatch.setattr(model, "forward", self._hold)

    def _hold(self, batch: Any) -> Any:
        self.entered.set()
        assert self._let.wait(PATIENCE)
        return self._forward(batch)

    async def hangs(self) -> None:
        """Returns once a forward pass is blocked."""
        assert await asyncio.to_thread(self.entered.wait, 20)

    def let_go(self) -> None:
        self._let.set()


@dataclass
class InProcessDrafter:
    """The whole service without its process and port."""

    settings: DrafterSettings
    changes: ModelChanges
    servicer: DrafterServicer
    shutdown: Shutdown
    loader: Loader

    @asynccontextmanager
    async def connected(self, verifier: str = "", **hello: Any) -> AsyncIterator[VerifierSide]:
        async with in_process_call(lambda stream: self.servicer.converse(stream, verifier)) as stream:
            side = VerifierSide(stream)
            await side.hello(**hello)
            yield side

    @property
    def model(self) -> PackedModel:
        """The model that new streams get."""
        model: PackedModel = self.changes.serving._drafting._drafter.model  # type: ignore[attr-defined]
        return model

    async def status(self) -> drafter_service_pb2.DrafterStatus:
        """Returns the drafter's status once the drafting thread has handled all commands."""
        status = await self.changes.status()
        assert status is not None
        return status

    async def shares(self) -> dict[str, drafter_service_pb2.VerifierShare]:
        """Returns the verifiers' shares by name, once the drafting thread has handled all commands."""
        await self.changes.serving._drafting.open_sequences()
        return {each.name: each for each in self.changes.verifiers()}

    async def open_sequences(self) -> int:
        return (await self.status()).open_sequences


MakeDrafter = Callable[..., AbstractAsyncContextManager[InProcessDrafter]]


@pytest.fixture
def make_drafter(checkpoint: Path) -> MakeDrafter:
    @asynccontextmanager
    async def make(
        load: Callable[[DrafterSettings], LoadedModel] | None = None, **settings: Any
    ) -> AsyncIterator[InProcessDrafter]:
        defaults = {"model": str(checkpoint), "kv_slots": 4096, "threads": 1}
        chosen = DrafterSettings(**(defaults | settings))
        shutdown, loader = Shutdown(), Loader()
        async with ModelChanges(chosen, shutdown, load or loader).running() as changes:
            yield InProcessDrafter(chosen, changes, DrafterServicer(changes, chosen.max_streams), shutdown, loader)
        assert shutdown.failure is None

    return make


@pytest.fixture
async def drafter(make_drafter: MakeDrafter) -> AsyncIterator[InProcessDrafter]:
    async with make_drafter() as made:
        yield made


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory, seed=5)
