"""Checks that a checkpoint has every tensor of its model, and no others; computes those that no checkpoint stores.

transformers fills what is missing with random numbers and leaves out what it does not know. Either way the model would
compute something else than the checkpoint's authors meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations import peft
from transformers.models.auto import auto_factory
from transformers.utils import logging

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError

_NAMED = 3
"""Number of tensors that a message names."""
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$")
"""Tensors in old checkpoints that are computed, not read."""
_DRAFTING = re.compile(r"(^|\.)(mtp|nextn)")
"""Layers of the checkpoint that predict several tokens; they draft, and the model's own output does not need them."""
_FINDER = "find_adapter_config_file"
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def check_complete(source: str, config: PretrainedConfig, told: dict[str, Any], *, in_part: bool) -> None:
    """Raises ModelLoadError, which names the tensors, for a checkpoint that is not its configuration's.

    source: the checkpoint's name. told: `output_loading_info` of transformers. in_part: whether the checkpoint has
    weights that are meant to be skipped.
    """
    missing = [name for name in told["missing_keys"] if not _COMPUTED.search(name)]
    left_over = [] if in_part else [name for name in told["unexpected_keys"] if not needs_no_place(name, config)]
    if not missing and not left_over:
        _check_shapes(source, told)
        return
    parts = [f"lacks {_named(missing)}"] if missing else []
    if left_over:
        parts.append(f"has {_named(left_over)}, which its configuration has no place for")
    raise ModelLoadError(f"model {source}: the checkpoint {' and '.join(parts)}")


def _check_shapes(source: str, told: dict[str, Any]) -> None:
    """Raises ModelLoadError for tensors of other shapes than the configuration's."""
    wrong = sorted(told["mismatched_keys"], key=lambda each: _in_order(each[0]))
    if not wrong:
        return
    name, found, expected = wrong[0]
    more = f", and {len(wrong) - 1} more do not fit" if len(wrong) > 1 else ""
    raise ModelLoadError(
        f"model {source}: the tensor {name} has shape {list(found)}, and its configuration says {list(expected)}{more}"
    )


def _named(names: Collection[str]) -> str:
    first = ", ".join(sorted(names, key=_in_order)[:_NAMED])
    count = len(names)
    return f"the tensor {first}" if count == 1 else f"{count} tensors ({first}{', ...' if count > _NAMED else ''})"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Orders names by their numbers."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def needs_no_place(name: str, config: PretrainedConfig) -> bool:
    """Whether a tensor without a place in the model changes no output: one that is computed, or that drafts."""
    if _COMPUTED.search(name) or _DRAFTING.search(name):
        return True
    layer = _LAYER.search(name)
    if layer is None:
        return False
    first = int(config.num_hidden_layers)
    return first <= int(layer[1]) < first + int(getattr(config, "num_nextn_predict_layers", 0) or 0)


@contextmanager
def without_report() -> Iterator[None]:
    """Silences transformers' list of tensors that are missing or left over, which `check_complete` reports."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def without_adapter() -> Iterator[None]:
    """Has transformers leave an adapter next to a model alone within the context: with the package peft installed it
    would apply it, although such a model is usually the merged one."""
    given = [(place, getattr(place, _FINDER)) for place in (auto_factory, peft)]
    for place, _ in given:
        setattr(place, _FINDER, lambda *_, **__: None)
    try:
        yield
    finally:
        for place, find in given:
            setattr(place, _FINDER, find)


def compute_buffers(model: PreTrainedModel) -> None:
    """Fills the buffers that are computed rather than stored, by transformers' own initialisation."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            tensor._is_hf_initialized = True  # so that it stays as it is
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()
