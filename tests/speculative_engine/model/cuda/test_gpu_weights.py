"""Low-bit weights by torchao: the 8-bit code for GPUs also runs on a CPU, where torchao is installed."""

import copy
import sys

import pytest
import torch

from speculative_engine.model.cuda.gpu_weights import GpuWeightsError, narrow_weights
from speculative_engine.model.packed_model import PackedModel, UnsupportedModelError
from tests.harness.engine.engines import plain_logits, random_tokens, tiny_model


def test_eight_bits_say_about_the_same() -> None:
    pytest.importorskip("torchao")
    model = tiny_model("Llama", torch.bfloat16)
    narrow = copy.deepcopy(model)
    narrow_weights(narrow, 8)
    assert narrow.model.layers[0].mlp.up_proj.weight.qdata.dtype == torch.int8
    tokens = random_tokens(20)
    whole, rounded = plain_logits(model, tokens).float(), plain_logits(narrow, tokens).float()
    difference = (whole - rounded).norm() / whole.norm()
    assert 0 < difference < 0.05


def test_four_bits_where_there_is_no_gpu() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(GpuWeightsError, match="torchao cannot store these weights in 4 bits: "):
        narrow_weights(tiny_model("Llama", torch.bfloat16), 4)


def test_a_cpu_has_no_four_bits() -> None:
    with pytest.raises(UnsupportedModelError, match="weights int4 need bfloat16 on a GPU, not bfloat16 on cpu"):
        PackedModel(tiny_model("Llama", torch.bfloat16), 100, row_exact=False, weights="int4")


def test_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(GpuWeightsError, match=r"pip install -e '\.\[gpu\]'"):
        narrow_weights(tiny_model("Llama", torch.bfloat16), 8)
