"""The backend of a model: everything that differs between a CPU, a GPU and a group of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import KvDtype, Weights
from draftwire_core.engine.device.device_copy import HostCopy
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.cuda.slots.draft_steps import DraftSteps
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.model_layers import ModelLayers
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.rows import FixedRows, Rows
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.step_draws import StepDraws

MOST_ROWS = 256
"""Rows of a pass beyond which a prompt is not read much faster."""

RunFixed = Callable[[FixedRows, Tensor | None], Rows]
"""Runs the model over rows in tensors of a fixed size, and returns the given rows, or all."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a model that its backend has to meet."""

    name: str
    """The model's, for messages."""
    architecture: str
    dtype: torch.dtype
    weights: Weights
    """The form of linear layers' weights."""
    kv_dtype: KvDtype
    """Type of keys and values in the KV cache."""
    group_size: int
    """Query heads per key-value head."""
    context_length: int
    """Tokens of the longest sequence."""
    reads_features: bool = False
    """Whether the model reads a feature vector with each token."""


class Description(NamedTuple):
    """The properties of a backend."""

    layer_kernels: str
    """Whether Triton kernels compute passes, for logs: "yes", "attention" if only that, or why they do not."""
    most_rows: int
    """Rows of a pass beyond which a prompt is not read much faster."""
    can_be_tapped: bool
    """Whether passes may have taps."""
    ruled_out_shapes: int = 0
    """Shapes of Triton kernels that gave rows other bits when they were tried at load, and are not used."""


class StepRunner(Protocol):
    """Runs passes in tensors of fixed sizes, which may be captured as CUDA graphs."""

    unavailable: str | None
    """Reason why the model could not be captured; None if it was, or was not tried."""
    replays: bool
    """Whether captured steps are replayed; if not, all kernels are launched one by one, for comparisons."""

    @property
    def captured(self) -> int:
        """Number of sizes whose steps were captured."""

    def capture(self) -> None:
        """Captures the steps of each size. Raises torch.OutOfMemoryError, and RankLostError."""

    def forward(self, batch: PackedBatch) -> Rows:
        """Runs one forward pass: writes the rows' keys and values and returns the wanted rows."""

    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """Runs `forward` and draws tokens in the same graph, if `run` draws; they are then on their way to the host."""


class Backend(Protocol):
    """A place where a model runs. It serves one model."""

    def fingerprint(self, model: PreTrainedModel, factors: str | None) -> str:
        """The model's `weights_fingerprint`, before it is prepared. Raises RankLostError."""

    def prepare(self, model: PreTrainedModel, mixers: Sequence[Mixer]) -> ModelLayers:
        """Replaces layers of the model in place by those of this backend, and returns what runs them. mixers: its
        recurrent ones. Raises UnsupportedModelError."""

    def layers(self, model: PreTrainedModel) -> ModelLayers:
        """Returns the runner of a view of the first layers of the prepared model. Raises ModelLoadError."""

    def cache(self, slots: int) -> KvCache:
        """An empty KV cache for the prepared model."""

    def steps(self, slots: int, run: RunFixed) -> StepRunner | None:
        """Returns the runner of steps in fixed sizes over a cache of `slots` slots; None if passes have any size."""

    def drafts(
        self, slots: int, run: RunFixed, sampler: KernelSampler, feeding: Feeding | None = None
    ) -> DraftSteps | None:
        """Returns the runner of drafts of several steps by one call; None if each is a call of its own. feeding: for
        models that read features."""

    def describe(self) -> Description:
        """Returns the properties of the backend, once a model is prepared."""

    def keep_alive(self) -> float | None:
        """Keeps idle ranks alive; to be called between passes. Returns the seconds after which to call it again unless
        a pass comes first; None for never. Raises RankLostError."""
