"""Runs the real drafter service in this process, without a port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_service.models.loaded_model import LoadedModel, Translation, model_info
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from service_runtime.process.lifecycle import Shutdown
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_cost import StepCost
from tests.harness.verifier.loaded_models import loaded_model


@dataclass
class InProcessDrafter:
    """A drafter; `servicer.converse` takes its calls."""

    model: PackedModel
    changes: ModelChanges
    servicer: DrafterServicer

    async def sequences(self) -> int:
        """Returns the number of open sequences once all earlier commands are done."""
        return (await self.changes.serving.status()).open_sequences


@asynccontextmanager
async def in_process_drafter(checkpoint: Path, **settings: Any) -> AsyncIterator[InProcessDrafter]:
    """Runs a drafter with the given checkpoint and settings."""
    chosen = DrafterSettings(**({"model": str(checkpoint), "kv_slots": 4096} | settings))
    with loaded_model(checkpoint, chosen.kv_slots) as model:
        async with _drafter(chosen, model) as made:
            yield made


@asynccontextmanager
async def _drafter(chosen: DrafterSettings, model: PackedModel) -> AsyncIterator[InProcessDrafter]:
    translation = Translation.load(chosen, model)
    info = model_info(model, translation.own.sha256, bit_exact=True)
    translation.present(info)
    loaded = LoadedModel(model, info, StepCost([1], [0.001]), translation.token_map)
    shutdown = Shutdown()
    changes = ModelChanges(chosen, shutdown, lambda _: loaded)
    async with changes.running():
        yield InProcessDrafter(model, changes, DrafterServicer(changes, chosen.max_streams))
    assert shutdown.failure is None
