"""A rank's part of a model: on its CPU or GPU like a whole one, with passes that all ranks run together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwire_core.engine.device.device_copy import HostCopy
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.backends.backend import Description, Needs, RunFixed
from draftwire_core.engine.model.backends.cpu_backend import CpuBackend
from draftwire_core.engine.model.backends.cuda_backend import CudaBackend
from draftwire_core.engine.model.cuda.captured_steps import Together
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.model_layers import ModelLayers
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.ranks.sharded_layers import SplitError, keep_own_parts
from draftwire_core.engine.model.reading.read_model import UnsupportedModelError
from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.rows import FixedRows, Rows
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.step_draws import StepDraws


class ShardedBackend:
    """The backend of one rank of a group. Passes raise RankLostError if another one is lost."""

    def __init__(self, own: CpuBackend | CudaBackend, needs: Needs, device: torch.device, ranks: RankGroup):
        """own: the backend of this rank's device."""
        self._own = own
        self._needs = needs
        self._device = device
        self._ranks = ranks

    def fingerprint(self, model: PreTrainedModel, factors: str | None) -> str:
        """See Backend; of the whole model."""
        with self._ranks.exchange():
            return self._own.fingerprint(model, factors)

    def prepare(self, model: PreTrainedModel, mixers: Sequence[Mixer]) -> ModelLayers:
        """See Backend."""
        needs = self._needs
        if mixers:
            raise UnsupportedModelError(
                f"model {needs.name}: the recurrent layers of {needs.architecture} cannot be split among ranks "
                "(--tensor-parallel)"
            )
        try:
            keep_own_parts(model, self._ranks)
        except SplitError as error:
            raise UnsupportedModelError(f"model {needs.name}: {error}") from error
        self._own.prepare(model, mixers)
        return _SharedLayers(model, self._ranks)

    def layers(self, model: PreTrainedModel) -> ModelLayers:
        """See Backend: there is none."""
        raise ModelLoadError(
            f"model {self._needs.name}: its layers are split among {self._ranks.size} ranks (--tensor-parallel), which "
            "run all of them or none"
        )

    def cache(self, slots: int) -> KvCache:
        """See Backend."""
        return self._own.cache(slots)

    def steps(self, slots: int, run: RunFixed) -> SlotSteps | None:
        """See Backend."""
        return _SharedSteps(run, slots, self._device, self._ranks) if self._own.on_kernels else None

    def drafts(self, slots: int, run: RunFixed, sampler: KernelSampler, feeding: Feeding | None = None) -> None:
        """See Backend: each step is a call of its own."""

    def describe(self) -> Description:
        """See Backend."""
        return self._own.describe()._replace(can_be_tapped=False)

    def keep_alive(self) -> float:
        """See Backend."""
        return self._ranks.keep_alive()


class _SharedLayers(ModelLayers):
    """Layers whose passes of any size are announced to the other ranks."""

    def __init__(self, model: PreTrainedModel, ranks: RankGroup):
        super().__init__(model)
        self._ranks = ranks

    def logits(self, batch: PackedBatch, cache: KvCache) -> Tensor:
        """See ModelLayers."""
        self._ranks.announce(batch)
        return super().logits(batch, cache)

    def rows(self, batch: PackedBatch | FixedRows, cache: KvCache, wanted: Tensor | int) -> Rows:
        """See ModelLayers."""
        if isinstance(batch, PackedBatch):  # steps of fixed sizes announce theirs: a graph does not come here
            self._ranks.announce(batch)
        return super().rows(batch, cache, wanted)


class _SharedSteps(SlotSteps):
    """Steps that are announced to the other ranks, and whose graphs all capture together."""

    def __init__(self, run: RunFixed, slots: int, device: torch.device, ranks: RankGroup):
        super().__init__(run, slots, device)
        self._ranks = ranks
        self.wait = ranks.await_device

    def forward(self, batch: PackedBatch) -> Rows:
        """See CapturedSteps. Results that rank 0 is about to use are awaited here, where a lost rank is noticed."""
        self._ranks.announce(batch)
        rows = super().forward(batch)
        if self._ranks.leads and batch.wanted and self._device.type == "cuda":
            reached = torch.cuda.Event()
            reached.record(torch.cuda.current_stream(self._device))
            self._ranks.await_device(reached.query)
        return rows

    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """See CapturedSteps; the copy is awaited with an eye on the other ranks."""
        self._ranks.announce(batch)
        return super().forward_and_draw(batch, draws)

    def capture(self, together: Together | None = None) -> None:
        """See CapturedSizes. All ranks do so together."""
        self._ranks.announce_capture()
        super().capture(together or self._ranks)
