"""A drafter without sockets over a tiny random model."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drafter_service.models import model_changes
from drafter_service.models.loaded_model import LoadedModel, model_info
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services
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


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
async def drafter(services: Services, checkpoint: Path, loader: Loader) -> AsyncIterator[InProcessDrafter]:
    async with services.in_process_drafter(checkpoint, load=loader) as made:
        yield made


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory, seed=5)
