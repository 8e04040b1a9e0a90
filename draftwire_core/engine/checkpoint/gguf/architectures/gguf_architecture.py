"""All that is needed to read the models of an architecture from GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import SAME, Added, GgufChange, Halved, Permuted
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import GgufKeys

Values = dict[str, Any]
"""Fields of a configuration."""


@dataclass(frozen=True, slots=True)
class GgufRule:
    """The storage of some parameters that files have with other values than transformers, or under other names than the
    package gguf.

    Of several rules for a parameter the first one counts whose tensors the file has.
    """

    parameter: str
    """A regular expression for the end of the parameter's name in transformers."""
    change: Callable[[PretrainedConfig], GgufChange] = lambda _: SAME
    """The change, given the configuration."""
    names: tuple[str, ...] = ()
    """The names of the tensors in the file, without `blk.` and the number of the layer; those of gguf if empty."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """A family of models, as llama.cpp divides them, or a part of it that is a class of its own in transformers."""

    name: str
    """The name in the file, which begins the keys of its metadata."""
    model_type: str
    """The name in transformers."""
    when: str = ""
    """The key that must not be 0 or missing for this part of a family; empty for the rest of it."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Fields of the configuration that are sizes, by their keys."""
    numbers: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    """Fields of the configuration that are other numbers: the key, and the number of files without it; None if files
    must have it."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are the same in all models."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Fields that say whether the model has some part, and the tensor of a layer that shows it."""
    read: Callable[[GgufKeys, Values], Values] = lambda keys, values: {}
    """Reads other fields, given those read so far; `model_type` among them for another type. Raises ModelLoadError."""
    rules: tuple[GgufRule, ...] = ()
    """The storage of parameters that is not as in transformers."""
    epsilon: str = "rms_norm_eps"
    """The field for what norms add to the variance."""
    epsilon_key: str = "attention.layer_norm_rms_epsilon"
    """The key in the metadata."""
    partly_rotated: bool = False
    """Whether only the first values of a head may be rotated."""
    fixed_rotary: bool = False
    """Whether `read` gives the parameters of the rotary embedding."""
    kv_heads_by_layer: bool = False
    """Whether layers may have different numbers of key and value heads; those with 0 do not attend."""
    feed_forward: bool = True
    """Whether all files have the width of an MLP, the same in all layers."""
    mixture: bool | None = False
    """Whether models have experts; None if they may."""
    latent: bool = False
    """Whether keys and values are compressed, so that `read` reads the lengths of their heads."""
    unused: str = ""
    """A regular expression for names of tensors that files may have and nobody uses."""
    renamed: tuple[str, str] = ("", "")
    """The beginnings of names of parameters in transformers, and those in the package gguf instead."""


def rows_permuted(*, query: str = "q_proj", key: str = "k_proj") -> tuple[GgufRule, ...]:
    """The rule for projections to queries and keys whose rows llama.cpp's converter permutes."""
    return (GgufRule(rf"\.({query}|{key})\.(weight|bias)", lambda config: Permuted(head_of(config))),)


def head_of(config: PretrainedConfig) -> int:
    """The number of values of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


NORMS_PLUS_ONE = (GgufRule(r"norm\.weight", lambda _: Added(1.0)),)
"""The rule for norms to whose weights llama.cpp's converter adds 1."""
EXPERTS = (
    GgufRule(r"experts\.gate_up_proj", lambda _: Halved(), ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    GgufRule(r"experts\.gate_up_proj", names=("ffn_gate_up_exps.weight",)),
    GgufRule(r"experts\.down_proj", names=("ffn_down_exps.weight",)),
)
"""The rules for experts, each matrix of which is a tensor with those of all experts."""
