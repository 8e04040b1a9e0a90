"""A loaded model, and what callers want to know of it."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.attention.rotary_factors import original_context, settle_factors, stretched_context
from draftwire_core.engine.model.backends.backend import Backend, StepRunner
from draftwire_core.engine.model.cuda.slots.draft_steps import DraftSteps
from draftwire_core.engine.model.model_facts import (
    WIDENED_ON_GPUS,
    architecture_of,
    block_types,
    dtype_name,
    eos_token_ids,
    parameter_count,
)
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler

_UNDECLARED = 2048
"""Context of a model that declares none, such as Mamba, by default."""


def context_of(config: PretrainedConfig, asked: int | None, name: str = "") -> int:
    """Tokens of the longest sequence. config: of the text decoder. asked: `--context-length`; None for the default.

    The default is what the model declares, but for a model with two sets of rotary factors what the short ones are for:
    up to there transformers gives the same text. Raises ModelLoadError if more is asked for than declared, with the
    factor of YaRN or of linear scaling.
    """
    declared = getattr(config, "max_position_embeddings", None)
    longest = int(declared or _UNDECLARED)
    if asked is None:
        return min(longest, original_context(config) or longest)
    longest = max(longest, stretched_context(config))
    if declared and asked > longest:
        raise ModelLoadError(f"model {name}: --context-length {asked} is longer than the model's {longest} tokens")
    return asked


class DescribedModel:
    """A model as known before its layers are replaced, and of what it runs on."""

    backend: Backend
    """The device that the model runs on."""
    cache: KvCache
    sampler: KernelSampler | None
    """Draws tokens on the device; None if it cannot."""
    draw_kernels: str
    """Whether it does, for logs: "yes", or why it does not."""
    steps: StepRunner | None
    """Runs steps in fixed sizes; None if passes have any size."""
    drafts: DraftSteps | None
    """Runs drafts of several steps by one call; None if each is a call of its own."""

    def __init__(
        self, model: PreTrainedModel, name: str, weights: Weights, context_length: int | None, *, is_target: bool
    ):
        """context_length: of the longest sequence, see `context_of`. Raises ModelLoadError."""
        self._is_target = is_target
        self.name = name or type(model).__name__
        self.weights = weights
        self.model = model.eval()
        self.config = model.config.get_text_config(decoder=True)
        self.device = model.device
        self.dtype = model.dtype
        converted = WIDENED_ON_GPUS if self.device.type != "cpu" else () if weights == "checkpoint" else ("f16",)
        self._block_types = block_types(model, converted=converted)
        self.parameters = parameter_count(model)
        head = model.get_output_embeddings()
        self.vocab_size, self.hidden_size = int(head.out_features), int(head.in_features)
        self.context_length = context_of(self.config, context_length, self.name)
        """Tokens of the longest sequence."""
        self.rotary_factors = settle_factors(model, self.context_length)
        """Returns which of two sets of rotary factors is used, "short" or "long"; None in models with one set."""
        self.text_part_of: str | None = getattr(model, "text_part_of", None)
        """The class of the multimodal model whose text part this is, if it is one."""
        self.architecture = architecture_of(model)
        self.eos_token_ids = eos_token_ids(model, self.vocab_size)

    @property
    def layers(self) -> int:
        """Number of decoder layers that were loaded."""
        return int(self.config.num_hidden_layers)

    @property
    def weight_type(self) -> str:
        """Name of the weights' type: the model's dtype, or that of linear layers, such as "int8" or "q4_0"."""
        if self._block_types:
            return self._block_types.most_common(1)[0][0]
        return dtype_name(self.dtype) if self.weights == "checkpoint" else self.weights

    @property
    def kv_dtype(self) -> str:
        """Name of the type of keys and values in the KV cache: the model's dtype, "float16" or "q8_0"."""
        return dtype_name(self.dtype) if self.cache.dtype == "auto" else self.cache.dtype

    @property
    def state_bytes(self) -> int:
        """Memory of a sequence's state in recurrent layers, in bytes; 0 if the model has none."""
        return 0 if self.cache.states is None else self.cache.states.state_bytes

    @property
    def node_bytes(self) -> int:
        """Memory that a token takes in recurrent layers while it may be rolled back, in bytes; 0 if the model has
        none."""
        return 0 if self.cache.states is None else self.cache.states.input_bytes

    @property
    def layer_kernels(self) -> str:
        """Whether Triton kernels compute passes, for logs: "yes", "attention" if only that, or why they do not."""
        return self.backend.describe().layer_kernels

    @property
    def most_rows(self) -> int:
        """Rows of a pass beyond which a prompt is not read much faster."""
        return self.backend.describe().most_rows

    @property
    def can_be_tapped(self) -> bool:
        """Whether passes may have taps."""
        return self.backend.describe().can_be_tapped

    @property
    def ruled_out_shapes(self) -> int:
        """Shapes of Triton kernels that gave rows other bits when they were tried at load, and are not used."""
        return self.backend.describe().ruled_out_shapes

    @property
    def draws_in_pass(self) -> bool:
        """Whether passes draw a target's tokens themselves, see `forward_and_draw`."""
        return self._is_target and self.sampler is not None and self.steps is not None

    @property
    def captured(self) -> int:
        """Number of step sizes that were captured as CUDA graphs."""
        return 0 if self.steps is None else self.steps.captured

    @property
    def graphs(self) -> str:
        """State of the CUDA graphs, for logs: their number, or why there are none."""
        unavailable = None if self.steps is None else self.steps.unavailable
        drafts = 0 if self.drafts is None else self.drafts.captured
        return unavailable or str(self.captured + drafts if self.device.type == "cuda" else 0)

    def keep_alive(self) -> float | None:
        """Keeps idle ranks alive; to be called between passes. Raises RankLostError.

        Returns the seconds after which to call it again unless a pass comes first; None for never.
        """
        return self.backend.keep_alive()
