"""Tries a class of transformers' models as a tiny random one: loads it, and runs the self-test."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.layers.fused_layer import FusedLayer
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.reading.text_part import without_timm
from tests.harness.models.shrunken import randomised, shrunken_config

FUSED, PARTLY, RUNS, REFUSED, NOT_TINY = "fused", "partly fused", "runs", "refused", "cannot be made tiny"
_SLOTS = 400
_MOST_PARAMETERS = 40_000_000
_TOKENS = 6


class Outcome(NamedTuple):
    """What came of the trial of a class."""

    kind: str
    """FUSED, PARTLY, RUNS, REFUSED or NOT_TINY"""
    reason: str
    """Why it is refused or cannot be made tiny; for one that runs, what it lacks, or nothing."""


def causal_classes() -> dict[str, list[str]]:
    """The classes of AutoModelForCausalLM that are of text alone, with their model types."""
    found: dict[str, list[str]] = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        found.setdefault(name, []).append(model_type)
    multimodal = multimodal_classes()
    return {name: types for name, types in sorted(found.items()) if name not in multimodal}


def multimodal_classes() -> dict[str, list[str]]:
    """The classes of AutoModelForImageTextToText, with their model types."""
    found: dict[str, list[str]] = {}
    for model_type, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items():
        found.setdefault(name, []).append(model_type)
    return dict(sorted(found.items()))


def tried(name: str) -> Outcome:
    """Tries a class of either mapping."""
    try:
        with without_timm():
            model = _tiny(name)
    except Exception as problem:  # noqa: BLE001 -- architectures raise anything for sizes they were not written for
        return Outcome(NOT_TINY, _line(problem))
    try:
        _run(model)
    except (TypeError, ValueError) as problem:
        return Outcome(REFUSED, f"transformers' own forward pass of a text fails: {_line(problem)}")
    except Exception as problem:  # noqa: BLE001 -- sizes that do not fit together
        return Outcome(NOT_TINY, _line(problem))
    runs = [_packed(name, model, dtype) for dtype in (torch.float32, torch.bfloat16)]
    notes = []
    for dtype, found in zip(("float32", "bfloat16"), runs, strict=True):
        if isinstance(found, str):
            return Outcome(REFUSED, found)
        if not found[1]:
            notes.append(f"rows of {dtype} depend on the batch in their last bits")
    packed = runs[1][0]
    return Outcome(_how_fused(packed), "; ".join(notes))


def _how_fused(model: PackedModel) -> str:
    layers = getattr(model.model.get_decoder(), "layers", None) or [None]
    if not all(isinstance(layer, FusedLayer) for layer in layers):
        return RUNS
    return FUSED if all(layer.is_whole for layer in layers) else PARTLY


def _tiny(name: str) -> PreTrainedModel:
    multimodal = multimodal_classes()
    mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if name in multimodal else MODEL_FOR_CAUSAL_LM_MAPPING
    types = multimodal.get(name) or causal_classes()[name]
    kind = next(mapping[CONFIG_MAPPING[each]] for each in types)
    config = shrunken_config(types[0] if name in multimodal else kind.config_class)
    with torch.device("meta"):
        parameters = sum(each.numel() for each in kind(copy.deepcopy(config)).parameters())
    if parameters > _MOST_PARAMETERS:
        raise ValueError(f"its smallest configuration here has {parameters / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    return randomised(kind(config))


def _run(model: PreTrainedModel) -> None:
    """Runs transformers' own forward pass of a text; raises what it raises."""
    tokens = torch.arange(1, _TOKENS + 1).unsqueeze(0)
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits
    if not logits.isfinite().all():
        raise ValueError("its logits are not finite")


def _packed(name: str, model: PreTrainedModel, dtype: torch.dtype) -> tuple[PackedModel, bool] | str:
    """The model packed, and whether rows have the same bits in any batch; or why it is refused."""
    mine = copy.deepcopy(model).to(dtype)
    try:
        if name in multimodal_classes():
            with tempfile.TemporaryDirectory() as directory:
                mine.save_pretrained(directory)
                ours = PackedModel.load(directory, slots=_SLOTS, dtype=str(dtype).removeprefix("torch."))
                ours.name = ""
        else:
            ours = PackedModel(mine, _SLOTS)
        return ours, run_self_test(ours).bit_exact
    except ModelLoadError as problem:
        return _reason(str(problem), name)


def _reason(message: str, name: str) -> str:
    """A refusal without the name of the model."""
    found = " ".join(message.split())
    for _ in range(2):
        for start in _starts(found, name):
            found = found.removeprefix(start).strip()
    return found


def _starts(message: str, name: str) -> Iterator[str]:
    if message.startswith("model "):
        yield message[: message.index(": ") + 1]
    yield from (f"{name} cannot be served:", name)


def _line(problem: Exception) -> str:
    lines = [each.strip() for each in str(problem).splitlines() if each.strip()]
    return f"{type(problem).__name__}: {' '.join(lines)}"[:200]
