"""Whether a configuration allows a model to be split."""

import pytest
from transformers import GPT2Config, LlamaConfig, Qwen3MoeConfig

from draftwire_core.engine.model.ranks.split_check import SplitError, check_devices, check_split


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
