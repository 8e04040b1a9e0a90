"""A quantised checkpoint that lacks a tensor, or has another one, is refused with a sentence that names it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.runtime.errors import ServiceError
from tests.harness.engine.engines import tiny_model
from tests.harness.models.eagle_checkpoints import write_parallel
from tests.harness.models.few_bit_forms import FEW_BIT_FORMS
from tests.harness.models.quantised_checkpoint import FORMS, Tensors, mxfp4, write_quantised
from verifier_service.reading.local_address import make_drafter

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
OPTIONAL = re.compile(
    r"g_idx$|^embed_tokens\.weight$|^lm_head\.weight$|input_scale$|input_global_scale$|weight_format$"
)
"""Tensors that may be missing: the order of inputs that have the usual one, what a target lends its drafter, and scales
of inputs, which nobody uses."""
SCALES = re.compile(r"scale|absmax$|SCB$|quant_map$")
"""Tensors whose elements must be finite numbers."""
ALL_FORMS = FORMS | FEW_BIT_FORMS
NAN = float("nan")
NO_NUMBERS = {torch.float32: NAN, torch.bfloat16: NAN, torch.float16: float("inf"), torch.float8_e4m3fn: NAN}


def write(directory: Path, kind: str) -> Path:
    if kind == "P-EAGLE":
        return write_parallel(directory)
    model: PreTrainedModel
    if kind == "MXFP4":
        model, form = tiny_model("GptOss", **SIZES, layer_types=["full_attention"] * 2), mxfp4()
    else:
        model, form = tiny_model("Llama", **SIZES), ALL_FORMS[kind]
    write_quantised(directory, model, form)
    return directory


def refusal(directory: Path, kind: str) -> str | None:
    """Why the checkpoint is refused; None if it is not."""
    try:
        if kind == "P-EAGLE":
            make_drafter(f"local:eagle3?model={directory}", PackedModel(tiny_model("Llama"), 100), hub=False)
        else:
            PackedModel.load(str(directory), slots=100)
    except (ModelLoadError, ServiceError) as error:
        return str(error)
    return None


def damages(tensors: Tensors, *, any_float: bool) -> Iterator[tuple[str, Tensors, tuple[str, ...]]]:
    """Kinds of damage: what it is, the tensors with it, and the names of which the refusal has one.

    any_float: whether numbers of 64 bits are read, too
    """
    first = {name: each for name, each in tensors.items() if ".1." not in name}
    for name, tensor in first.items():
        others = {other: each for other, each in tensors.items() if other != name}
        if not OPTIONAL.search(name) or (name == "lm_head.weight" and "model.norm.weight" in tensors):
            yield f"{name} is missing", others, (name,)
            yield f"{name} has another name", {**others, f"module.{name}": tensor}, (name, f"module.{name}")
        if tensor.dim() and len(tensor) > 1:
            yield f"{name} is shorter", {**others, name: tensor[:-1].clone()}, (name,)
            yield f"{name} has more dimensions", {**others, name: tensor[None].clone()}, (name,)
        if not any_float:
            yield f"{name} has another type", {**others, name: tensor.double()}, (name,)
        no_numbers = NO_NUMBERS.get(tensor.dtype) if SCALES.search(name) else None
        if no_numbers is not None:
            yield f"{name} has no numbers", {**others, name: torch.full_like(tensor, no_numbers)}, (name,)
        yield f"{name}x is left over", {**tensors, f"{name}x": tensor.clone()}, (f"{name}x",)
    without_last = {name: each for name, each in tensors.items() if ".1." not in name}
    if without_last.keys() != tensors.keys():
        yield "the last layer is missing", without_last, ("model.layers.1.",)
        another = {name.replace(".1.", ".2."): each.clone() for name, each in tensors.items() if ".1." in name}
        yield "there is a layer too many", {**tensors, **another}, ("model.layers.2.",)


@pytest.mark.parametrize("kind", [*ALL_FORMS, "MXFP4", "P-EAGLE"])
def test_each_damage_is_refused_by_the_name_of_the_tensor(kind: str, tmp_path: Path) -> None:
    weights = write(tmp_path, kind) / "model.safetensors"
    assert refusal(tmp_path, kind) is None
    tensors, wrong = load_file(weights), []
    with safe_open(weights, framework="pt") as file:
        notes = file.metadata()
    for damage, changed, names in damages(tensors, any_float=kind == "P-EAGLE"):
        weights.unlink()
        save_file(changed, weights, notes)
        told = refusal(tmp_path, kind)
        if told is None or not any(name in told for name in names) or "\n" in told or len(told) > 700:
            wrong.append((damage, told))
    assert wrong == []


@pytest.mark.parametrize("kind", ["W4A16", "FP8 by channel", "AWQ", "GPTQ", "FP8", "MXFP4"])
@pytest.mark.parametrize(("layers", "named"), [(1, "model.layers.1."), (3, "model.layers.2.")])
def test_layers_of_the_configuration(kind: str, layers: int, named: str, tmp_path: Path) -> None:
    config = write(tmp_path, kind) / "config.json"
    fields = json.loads(config.read_text())
    kinds = {"layer_types": fields["layer_types"][:1] * layers} if "layer_types" in fields else {}
    config.write_text(json.dumps({**fields, "num_hidden_layers": layers, **kinds}))
    assert named in (refusal(tmp_path, kind) or "")
