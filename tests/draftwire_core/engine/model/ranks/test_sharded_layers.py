"""Splitting a model: the layers themselves are tested with real ranks in tests/end_to_end."""

import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from transformers import Gemma4TextConfig, GPT2Config, LlamaConfig, Qwen3MoeConfig
from transformers.distributed import utils

from draftwire_core.engine.model.ranks import sharded_layers
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.ranks.sharded_layers import SplitError, check_devices, check_split, split_on
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

OLDER = """
import transformers.modeling_utils
from transformers.distributed import utils
del utils.TransformersDeviceMesh  # as in transformers 5.17
import draftwire_core.engine.loading.self_test
import draftwire_core.engine.in_process
"""


def test_one_device_needs_no_mesh_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "TransformersDeviceMesh")
    runpy.run_path(sharded_layers.__file__)


def test_ranks_on_cpus_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "TransformersDeviceMesh")
    ranks = cast(RankGroup, SimpleNamespace(size=2))
    with (
        pytest.raises(SplitError, match="on CPUs needs a newer transformers than "),
        split_on(torch.device("cpu"), ranks),
    ):
        pass


@pytest.mark.slow
class TestProcess:
    """A process with transformers 5.17."""

    def test_one_device_needs_no_mesh_of_transformers(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", OLDER], cwd=ROOT, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_model_whose_parts_are_equal_can_be_split() -> None:
    check_split(LlamaConfig(num_attention_heads=8, num_key_value_heads=4, intermediate_size=64), 4)
    check_devices("cpu", 64)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            LlamaConfig(hidden_size=96, num_attention_heads=6, num_key_value_heads=6),
            "num_attention_heads of the model's configuration is 6",
        ),
        (
            LlamaConfig(num_attention_heads=8, num_key_value_heads=2),
            "num_key_value_heads of the model's configuration is 2",
        ),
        (
            LlamaConfig(num_attention_heads=8, num_key_value_heads=4, intermediate_size=62),
            "intermediate_size of the model's configuration is 62",
        ),
        (
            Qwen3MoeConfig(num_attention_heads=8, num_key_value_heads=4, moe_intermediate_size=70),
            "moe_intermediate_size of the model's configuration is 70",
        ),
        (
            Gemma4TextConfig(
                num_attention_heads=8, num_key_value_heads=4, num_global_key_value_heads=2, attention_k_eq_v=True
            ),
            "num_key_value_heads of the model's configuration is 2",
        ),
        (GPT2Config(), "base_model_tp_plan"),
        (
            LlamaConfig(num_attention_heads=8, num_key_value_heads=4, quantization_config={"bits": 4}),
            "quantization_config",
        ),
    ],
)
def test_what_cannot_be_split_is_named_by_its_field(config: LlamaConfig, reason: str) -> None:
    with pytest.raises(SplitError, match=reason) as raised:
        check_split(config, 4)
    assert "--tensor-parallel" in str(raised.value)


def test_each_rank_needs_a_gpu() -> None:
    with pytest.raises(SplitError, match="4096 ranks need a GPU each"):
        check_devices("cuda", 4096)
