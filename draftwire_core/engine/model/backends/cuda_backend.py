"""A model on a GPU: on Triton kernels in steps of fixed sizes, or else by plain passes of transformers' layers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.backends.backend import MOST_ROWS, Description, Needs, RunFixed
from draftwire_core.engine.model.cuda.slots.draft_steps import DraftSteps
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.cuda.slots.slot_steps import ROWS, SlotSteps
from draftwire_core.engine.model.cuda.slots.tapped_rows import MOST_PLANES, TappedRows
from draftwire_core.engine.model.cuda.tapped_layers import keep_between
from draftwire_core.engine.model.model_facts import has_blocks
from draftwire_core.engine.model.model_layers import ModelLayers
from draftwire_core.engine.model.reading.read_model import UnsupportedModelError
from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.weights_fingerprint import weights_fingerprint
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler

_MOST_ROWS = 1024
"""Of a pass; fewer leave the device waiting for its next kernel."""

log = logging.getLogger(__name__)


class CudaBackend:
    """The backend of GPUs. On CPUs, for tests, its kernels run in Triton's interpreter."""

    def __init__(self, needs: Needs, device: torch.device, lacking: str | None, *, kernels: bool, tapped: bool):
        """lacking: what the kernels lack for the model, in words; None for nothing. kernels: whether to run on them.
        tapped: whether passes may have taps."""
        self._needs = needs
        self._device = device
        self.on_kernels = kernels
        """Whether passes run on Triton kernels, in steps of fixed sizes."""
        self._lacking = lacking
        self._layer_kernels = lacking or "no"
        self._ruled_out_shapes = 0
        self._can_be_tapped = tapped
        self._layers = self._width = 0
        """Of the prepared model."""

    def fingerprint(self, model: PreTrainedModel, factors: str | None) -> str:
        """See Backend."""
        found: str = weights_fingerprint(model, self._needs.weights, self._needs.kv_dtype, factors)
        return found

    def prepare(self, model: PreTrainedModel, mixers: Sequence[Mixer]) -> ModelLayers:
        """See Backend."""
        needs, config = self._needs, model.config.get_text_config(decoder=True)
        self._layers, self._width = int(config.num_hidden_layers), int(config.hidden_size)
        if mixers and self._device.type != "cpu":
            raise UnsupportedModelError(
                f"model {needs.name}: the recurrent layers of {needs.architecture} run on CPUs only, not on "
                f"{self._device.type}"
            )
        if self.on_kernels:
            from draftwire_core.engine.model.cuda.placing import use_gpu_layers  # needs Triton

            try:
                whole, lost = use_gpu_layers(model, needs.weights, needs.kv_dtype)
            except ModelLoadError as error:
                raise UnsupportedModelError(f"model {needs.name}: {error}") from error
            self._layer_kernels, self._ruled_out_shapes = "yes" if whole else "attention", len(lost)
            if self._can_be_tapped and not whole:
                self._can_be_tapped = keep_between(model)
            if lost:
                log.warning("kernel shapes ruled out", extra={"model": needs.name, "shapes": lost})
        elif has_blocks(model) or needs.weights != "checkpoint":
            what = "quantised weights" if has_blocks(model) else f"weights {needs.weights}"
            raise UnsupportedModelError(
                f"model {needs.name}: {what} on a GPU need kernels that this model does not have here: "
                f"{self._lacking or 'they are switched off'}"
            )
        return self.layers(model)

    def layers(self, model: PreTrainedModel) -> ModelLayers:
        """See Backend."""
        return ModelLayers(model)

    def cache(self, slots: int) -> KvCache:
        """See Backend."""
        return KvCache(slots, self._needs.kv_dtype, slots_first=self.on_kernels)

    def steps(self, slots: int, run: RunFixed) -> SlotSteps | None:
        """See Backend."""
        if not self.on_kernels:
            return None
        tapped: TappedRows | None = None
        if self._can_be_tapped:
            planes = 1 if self._needs.reads_features else min(MOST_PLANES, self._layers + 1)
            tapped = TappedRows(self._layers, planes, ROWS[-1], self._width, self._needs.dtype, self._device)
        features: Tensor | None = None
        if self._needs.reads_features:
            features = torch.empty(0, self._width, dtype=self._needs.dtype, device=self._device)
        return SlotSteps(run, slots, self._device, tapped=tapped, features=features)

    def drafts(
        self, slots: int, run: RunFixed, sampler: KernelSampler, feeding: Feeding | None = None
    ) -> DraftSteps | None:
        """See Backend."""
        if not self.on_kernels:
            return None
        return DraftSteps(run, sampler, slots, self._needs.group_size, self._device, feeding)

    def describe(self) -> Description:
        """See Backend."""
        most = _MOST_ROWS if self.on_kernels and self._device.type != "cpu" else MOST_ROWS
        return Description(self._layer_kernels, most, self._can_be_tapped, self._ruled_out_shapes)

    def keep_alive(self) -> None:
        """See Backend: there is no other process."""
