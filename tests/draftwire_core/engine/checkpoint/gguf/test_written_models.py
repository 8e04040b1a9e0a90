"""A model of each kind of architecture in a GGUF file is the model that was written; see test_converted_models.py for
all architectures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.architectures.table import ALL
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.models.shrunken import randomised, shrunken_config
from tests.harness.models.written_models import write_model

KINDS: dict[str, dict[str, Any]] = {
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "gemma2": {"query_pre_attn_scalar": 32},
    "phi3": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
}


def made(kind: str) -> PreTrainedModel:
    small = shrunken_config(kind)
    fields = {name: value for name, value in small.to_dict().items() if name != "model_type"}
    layers = {"num_hidden_layers": 2} | {name: value[:2] for name, value in fields.items() if name == "layer_types"}
    model = randomised(AutoModelForCausalLM.from_config(type(small)(**fields | layers | KINDS[kind]))).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that nothing is lost where a file adds 1
            parameter.copy_(parameter.bfloat16())
    result: PreTrainedModel = model
    return result


@pytest.mark.parametrize(
    ("kind", "joined"), [*((kind, False) for kind in KINDS), ("granite", True), ("gemma2", True), ("gpt_oss", True)]
)
def test_it_gives_the_same_logits(kind: str, joined: bool, tmp_path: Path) -> None:
    """joined: whether the file has one tensor of a layer's queries, keys and values, as --fuse-qkv writes it"""
    model = made(kind)
    file = GgufFile.open(write_model(tmp_path / "model.gguf", model, joined=joined))
    again = AutoModelForCausalLM.from_config(file.config()).eval()
    missing, unexpected = again.load_state_dict(
        {name: tensor.dequantised() for name, tensor in file.tensors.items()}, strict=False
    )
    assert set(missing) <= {"lm_head.weight"} and unexpected == []
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        found, expected = (each(tokens, use_cache=False).logits for each in (again, model))
    assert (found - expected).abs().max() <= 1e-4 * expected.std()


def test_sizes_may_be_lists_with_the_same_one_for_each_layer(tmp_path: Path) -> None:
    path, model = tmp_path / "model.gguf", made("granite")
    file = GgufFile.open(write_model(path, model, changed={"attention.head_count_kv": [4, 4]}))
    assert file.config().num_key_value_heads == 4
    write_model(path, model, changed={"attention.head_count_kv": [4, 2]})
    with pytest.raises(ModelLoadError, match=r"granite\.attention\.head_count_kv: is \[2, 4\] in different layers"):
        GgufFile.open(path)


@pytest.mark.parametrize(("kind", "joined"), [("gpt_oss", True), ("qwen3_5_text", False), ("granite", True)])
def test_the_engine_runs_it_in_blocks(kind: str, joined: bool, tmp_path: Path) -> None:
    """Experts whose gates and values are apart in the file, value heads in another order, and joined tensors."""
    path = write_model(tmp_path / "model.gguf", made(kind), quantised=True, joined=joined)
    model = PackedModel.load(str(path), slots=600)
    report = run_self_test(model)
    assert report.error <= report.tolerance


def test_the_documents_name_every_architecture() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "models.md").read_text()
    section = page[page.index("### GGUF files") : page.index("### Quantised checkpoints")]
    assert {each.name for each in ALL} <= set(re.findall(r"`([\w-]+)`", section))
