"""A model that llama.cpp's own converter wrote as a GGUF file is the model that it was, for every architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.models.llama_converter import convert
from tests.harness.models.shrunken import randomised, shrunken_config

pytestmark = pytest.mark.slow

_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 256}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 8192}
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [4.0] * 16, "short_factor": [1.0] * 16}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_MAMBA = {"layer_types": ["linear_attention", "full_attention"] * 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": _LLAMA3, "max_position_embeddings": 131072}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "ministral3": (
        "ministral3",
        {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    ),
    "qwen2": ("qwen2", {"use_sliding_window": False}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 32}),
    "gemma3": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 7,
            "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        },
    ),
    "granite": ("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "smollm3": ("smollm3", {}),
    "arcee": ("arcee", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "starcoder2": ("starcoder2", {}),
    "cohere": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"layer_types": [*["sliding_attention"] * 3, "full_attention"]}),
    "phi2": ("phi", {"intermediate_size": 512}),
    "stablelm": ("stablelm", {}),
    "olmo": ("olmo", {}),
    "phi3": ("phi3", {}),
    "phi3-long": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 512}),
    "phi4-mini": ("phi3", {"rope_parameters": _PARTIAL}),
    "glm4": ("glm4", {"rope_parameters": _PARTIAL}),
    "exaone4": ("exaone4", {"layer_types": [*["sliding_attention"] * 3, "full_attention"], "sliding_window": 8}),
    "exaone4-full": ("exaone4", {"layer_types": ["full_attention"] * 4, "sliding_window": None}),
    "seed-oss": ("seed_oss", {}),
    "ernie4_5": ("ernie4_5", {}),
    "nemotron": ("nemotron", {"rope_parameters": _PARTIAL}),
    "qwen3-moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen2-moe": ("qwen2_moe", {}),
    "olmoe": ("olmoe", {}),
    "granitemoe": ("granitemoe", {"embedding_multiplier": 3.0}),
    "granitemoeshared": ("granitemoeshared", {"embedding_multiplier": 3.0}),
    "gpt-oss": ("gpt_oss", {"rope_parameters": _YARN | {"truncate": False}}),
    "glm4-moe": ("glm4_moe", {"use_qk_norm": True, "rope_parameters": _PARTIAL, "num_nextn_predict_layers": 0}),
    "dots1": ("dots1", {}),
    "minimax-m2": ("minimax_m2", {}),
    "qwen3-next": ("qwen3_next", {"layer_types": [*["linear_attention"] * 3, "full_attention"]}),
    "qwen3.5": ("qwen3_5_text", {"layer_types": [*["linear_attention"] * 3, "full_attention"]}),
    "qwen3.5-moe": ("qwen3_5_moe_text", {"layer_types": [*["linear_attention"] * 3, "full_attention"]}),
    "granitehybrid": ("granitemoehybrid", {}),
    "granitehybrid-dense": ("granitemoehybrid", {"num_local_experts": 0}),
    "granitehybrid-attention": (
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": ["full_attention"] * 4,
            "position_embedding_type": "rope",
        },
    ),
    "falcon-h1": ("falcon_h1", {"mamba_norm_before_gate": False, "mamba_rms_norm": True, "key_multiplier": 0.5}),
    "nemotron-h": ("nemotron_h", {"layer_types": ["linear_attention", "mlp", "full_attention", "mlp"]}),
    "nemotron-h-moe": ("nemotron_h", {}),
    "deepseek-v2": ("deepseek_v2", {}),
    "deepseek-v3": ("deepseek_v3", {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "gemma3n": ("gemma3n_text", {}),
    "gemma4": ("gemma4_text", {}),
    "lfm2": ("lfm2", {}),
    "lfm2-moe": ("lfm2_moe", {}),
}
"""Types of models, and what their configurations have besides what `shrunken_config` gives."""
IN_BLOCKS = (
    *("llama", "qwen2", "gemma2", "phi3", "granite", "mixtral", "qwen3-moe", "gpt-oss", "glm4-moe"),
    *("qwen3-next", "granitehybrid", "falcon-h1", "nemotron-h-moe", "lfm2"),
)
"""Models that are also tried in Q8_0, in the engine."""


def made(kind: str, changes: dict[str, Any]) -> PreTrainedModel:
    """A tiny random model, all of whose values are in bfloat16, so that nothing is lost where a file adds 1."""
    small = shrunken_config(kind)
    fields = {name: value for name, value in small.to_dict().items() if name not in ("model_type", "per_layer_config")}
    config: PretrainedConfig = type(small)(**fields | changes)
    torch.manual_seed(0)
    model: PreTrainedModel = randomised(AutoModelForCausalLM.from_config(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


@pytest.fixture(scope="module")
def originals() -> dict[str, PreTrainedModel]:
    return {name: made(kind, changes) for name, (kind, changes) in MODELS.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, originals: dict[str, PreTrainedModel]) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("converted")
    plain = {name: (model, "ALL_F32") for name, model in originals.items()}
    return convert(place, plain | {f"{name}-q8": (originals[name], "MOSTLY_Q8_0") for name in IN_BLOCKS})


def opened(path: Path) -> GgufFile:
    failed = Path(f"{path}.error")
    assert not failed.exists(), failed.read_text()[-3000:]
    return GgufFile.open(path)


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(3, 63)[None], use_cache=False).logits[0]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_the_same_logits(name: str, files: dict[str, Path], originals: dict[str, PreTrainedModel]) -> None:
    file = opened(files[name])
    before = originals[name]
    again = AutoModelForCausalLM.from_config(file.config()).eval()
    missing, unexpected = again.load_state_dict(
        {name: tensor.dequantised() for name, tensor in file.tensors.items()}, strict=False
    )
    assert set(missing) <= {"lm_head.weight"} and unexpected == []
    expected = logits(before)
    assert (logits(again) - expected).abs().max() <= 2e-4 * expected.std()


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_the_engine_runs_it_in_blocks(name: str, files: dict[str, Path], originals: dict[str, PreTrainedModel]) -> None:
    path = files[f"{name}-q8"]
    opened(path)
    model = PackedModel.load(str(path), slots=600)
    report = run_self_test(model)
    assert report.error <= report.tolerance
    if name == "glm4-moe":  # as transformers keeps them
        buffers = dict(model.model.named_buffers())
        biases = [buffer for path, buffer in buffers.items() if path.endswith("e_score_correction_bias")]
        assert biases and all(bias.dtype == torch.float32 for bias in biases)
