"""A model on a CPU: layers of compiled code if there are any, and passes of any size."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.kv.recurrent_states import RecurrentStates
from draftwire_core.engine.model.backends.backend import MOST_ROWS, Description, Needs, RunFixed
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.layers.compiled_pass import CompiledPass
from draftwire_core.engine.model.layers.cpu_layers import use_cpu_layers
from draftwire_core.engine.model.model_layers import ModelLayers
from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.weights_fingerprint import weights_fingerprint
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler


class CpuBackend:
    """The backend of CPUs."""

    on_kernels = False
    """Whether passes run on Triton kernels, in steps of fixed sizes."""

    def __init__(self, needs: Needs, lacking: str, *, row_exact: bool, split: bool):
        """lacking: why Triton kernels compute nothing. row_exact: give a row the same bits whatever rows share its
        batch. split: whether the model is a rank's part of one."""
        self._needs = needs
        self._lacking = lacking
        self._row_exact = row_exact
        self._split = split
        self._mixers: Sequence[Mixer] = ()

    def fingerprint(self, model: PreTrainedModel, factors: str | None) -> str:
        """See Backend."""
        found: str = weights_fingerprint(model, self._needs.weights, self._needs.kv_dtype, factors)
        return found

    def prepare(self, model: PreTrainedModel, mixers: Sequence[Mixer]) -> ModelLayers:
        """See Backend."""
        use_cpu_layers(model, self._needs.weights, row_exact=self._row_exact, split=self._split, recurrent=bool(mixers))
        self._mixers = mixers
        return self.layers(model)

    def layers(self, model: PreTrainedModel) -> ModelLayers:
        """See Backend."""
        return ModelLayers(model, None if self._split else CompiledPass.of(model))

    def cache(self, slots: int) -> KvCache:
        """See Backend."""
        shapes = [each.shape for mixer in self._mixers for each in mixer.recurrences]
        states = RecurrentStates(shapes, self._needs.dtype, slots) if self._mixers else None
        return KvCache(slots, self._needs.kv_dtype, states=states)

    def steps(self, slots: int, run: RunFixed) -> None:
        """See Backend: passes have any size."""

    def drafts(self, slots: int, run: RunFixed, sampler: KernelSampler, feeding: Feeding | None = None) -> None:
        """See Backend: each step is a call of its own."""

    def describe(self) -> Description:
        """See Backend."""
        return Description(self._lacking, MOST_ROWS, can_be_tapped=not self._split)

    def keep_alive(self) -> None:
        """See Backend: there is no other process."""
