"""Runs the real drafter service in this process, without a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_service.models.loaded_model import LoadedModel, Translation, model_info
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1.drafter_service_pb2 import DrafterStatus, VerifierShare
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from tests.harness.drafter.verifier_side import VerifierSide
from tests.harness.services.loaded_models import loaded_model

Load = Callable[[DrafterSettings], LoadedModel]
"""Loads the model of a drafter's settings."""


@dataclass
class InProcessDrafter:
    """A drafter; `servicer.converse` takes its calls."""

    settings: DrafterSettings
    changes: ModelChanges
    servicer: DrafterServicer
    shutdown: Shutdown

    @asynccontextmanager
    async def connected(self, verifier: str = "", **hello: Any) -> AsyncIterator[VerifierSide]:
        """Opens a stream and shakes hands. verifier: who calls. hello: fields of the verifier's PeerInfo."""
        async with in_process_call(lambda stream: self.servicer.converse(stream, verifier)) as stream:
            side = VerifierSide(stream)
            await side.hello(**hello)
            yield side

    @property
    def model(self) -> PackedModel:
        """The model that new streams get."""
        model: PackedModel = self.changes.serving._drafting._drafter.model  # type: ignore[attr-defined]
        return model

    async def status(self) -> DrafterStatus:
        """Returns the drafter's status once the drafting thread has handled all commands."""
        status = await self.changes.status()
        assert status is not None
        return status

    async def open_sequences(self) -> int:
        """Returns the number of open sequences once the drafting thread has handled all commands."""
        return (await self.status()).open_sequences

    async def shares(self) -> dict[str, VerifierShare]:
        """Returns the verifiers' shares by name, once the drafting thread has handled all commands."""
        await self.changes.serving._drafting.open_sequences()
        return {each.name: each for each in self.changes.verifiers()}


@asynccontextmanager
async def in_process_drafter(
    checkpoint: Path, *, load: Load | None = None, tracing: Tracing = NO_TRACING, **settings: Any
) -> AsyncIterator[InProcessDrafter]:
    """Runs a drafter.

    load: loads its models; by default a tiny model is lent to it, which answers every load. settings: of
    DrafterSettings.
    """
    chosen = DrafterSettings(**({"model": str(checkpoint), "kv_slots": 4096, "threads": 1} | settings))
    with _lent(checkpoint, chosen) if load is None else nullcontext(load) as loads:
        shutdown = Shutdown()
        async with ModelChanges(chosen, shutdown, loads, tracing).running() as changes:
            yield InProcessDrafter(chosen, changes, DrafterServicer(changes, chosen.max_streams), shutdown)
        assert shutdown.failure is None


@contextmanager
def _lent(checkpoint: Path, chosen: DrafterSettings) -> Iterator[Load]:
    with loaded_model(checkpoint, chosen.kv_slots) as model:
        translation = Translation.load(chosen, model)
        info = model_info(model, translation.own.sha256, bit_exact=True)
        translation.present(info)
        loaded = LoadedModel(model, info, StepCost([1], [0.001]), translation.token_map)
        yield lambda _: loaded
