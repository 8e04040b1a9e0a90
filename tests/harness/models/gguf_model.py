"""Writes models as GGUF files, as llama.cpp's convert_hf_to_gguf.py and llama-quantize do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, TokenType
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

SMALLEST: dict[str, int] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
"""Sizes of the smallest model that the tests write."""
_ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA}
_ARCHITECTURES |= {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
_ARCHITECTURES |= {"gemma3_text": gguf.MODEL_ARCH.GEMMA3}
Weights = Mapping[str, torch.Tensor]
QUANTISERS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
"""Types that `quantise` writes."""


def write_gguf(
    path: Path,
    config: PretrainedConfig,
    weights: Weights,
    type_name: str | Callable[[str], str] = "Q8_0",
    *,
    tokenizer: Path | None = None,
    pre: str = "gpt-2",
    whole: bool = False,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Writes a model.

    weights: by the names of transformers. type_name: the type of matrices, or their types by parameter name; vectors
    are F32. tokenizer: the directory of a byte-level tokenizer. pre: the name of its splitting. whole: whether the file
    also holds its tokenizer.json. change: adds more to the file.
    """
    arch = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_dimensions(writer, config)
    if tokenizer is not None:
        _add_tokenizer(writer, tokenizer, config.vocab_size, pre)
        if whole:
            writer.add_string(gguf.Keys.Tokenizer.HF_JSON, (tokenizer / "tokenizer.json").read_text())
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for parameter, weight in weights.items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(parameter, (".weight", ".bias"))
        assert name is not None, parameter
        values = weight.float().numpy()
        if arch == gguf.MODEL_ARCH.LLAMA and ".q_proj." in parameter:
            values = permuted(values, config.num_attention_heads)
        if arch == gguf.MODEL_ARCH.LLAMA and ".k_proj." in parameter:
            values = permuted(values, config.num_key_value_heads)
        if arch == gguf.MODEL_ARCH.GEMMA3 and parameter.endswith("norm.weight"):
            values = values + 1
        asked = type_name if isinstance(type_name, str) else type_name(parameter)
        kind = GGMLQuantizationType[asked] if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantise(values, kind.name), raw_dtype=kind)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_checkpoint_as_gguf(
    path: Path,
    directory: Path,
    type_name: str | Callable[[str], str] = "Q8_0",
    *,
    pre: str = "gpt-2",
    whole: bool = True,
) -> Path:
    """Writes the model of a checkpoint's directory, which has one file of weights, with its tokenizer."""
    from safetensors.torch import load_file

    config = AutoConfig.from_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    return write_gguf(path, config, weights, type_name, tokenizer=directory, pre=pre, whole=whole)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp, which rotates neighbouring values."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _add_dimensions(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("Tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "head_dim" in config.to_dict():
        writer.add_key_length(head)
        writer.add_value_length(head)
    if config.model_type in ("llama", "mistral"):
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head)
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(rope, head))


def _rope_factors(rope: Mapping[str, float], head: int) -> np.ndarray:
    frequencies = rope["rope_theta"] ** -(np.arange(0, head, 2) / head)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clip(0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, vocabulary: int, pre: str) -> None:
    made = AutoTokenizer.from_pretrained(directory)
    by_id = {token: text for text, token in made.get_vocab().items()}
    added = made.added_tokens_decoder
    texts, types = [], []
    for token in range(vocabulary):
        if token not in by_id:
            texts.append(f"[PAD{token}]")
            types.append(TokenType.UNUSED)
        elif token in added:
            texts.append(by_id[token])
            types.append(TokenType.CONTROL if added[token].special else TokenType.USER_DEFINED)
        else:
            texts.append(by_id[token])
            types.append(TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    gguf.SpecialVocab(directory, load_merges=True, n_vocab=vocabulary).add_to_gguf(writer, quiet=True)


# ---- quantisers -----------------------------------------------------------------------------------------------------


def quantise(values: np.ndarray, type_name: str) -> np.ndarray:
    """The blocks of float32 values, [.., values]: uint8, [.., bytes], or numbers for F32 and F16.

    Those of types that the library cannot quantise, and llama.cpp can, are coarser than llama.cpp's.
    """
    own = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}.get(type_name)
    if own is None:
        return gguf.quantize(values, GGMLQuantizationType[type_name])
    blocks = own(np.ascontiguousarray(values, np.float32).reshape(-1, gguf.QK_K))
    return blocks.reshape(*values.shape[:-1], -1)


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint8)


def _scales_and_mins(blocks: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first 16 bytes of blocks of Q4_K and Q5_K, and the quantised values 0 to `most`: [blocks, 8, 32]."""
    parts = blocks.reshape(-1, 8, 32)
    low = np.minimum(parts.min(-1), 0)
    step = (parts.max(-1) - low) / most
    d = (step.max(-1, keepdims=True) / 63).astype(np.float16)
    dmin = ((-low).max(-1, keepdims=True) / 63).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.nan_to_num(np.rint(step / d.astype(np.float32)), posinf=0).clip(0, 63).astype(np.uint8)
        mins = np.nan_to_num(np.rint(-low / dmin.astype(np.float32)), posinf=0).clip(0, 63).astype(np.uint8)
        real_step = (scales * d.astype(np.float32))[..., None]
        quantised = np.nan_to_num(np.rint((parts + (mins * dmin.astype(np.float32))[..., None]) / real_step), posinf=0)
    packed = np.concatenate(
        [
            (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6),
            (mins[:, :4] & 63) | (mins[:, 4:] >> 4 << 6),
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ],
        axis=-1,
    )
    head = np.concatenate([_half(d), _half(dmin), packed], axis=-1)
    return head, quantised.clip(0, most).astype(np.uint8)


def _nibbles(values: np.ndarray) -> np.ndarray:
    """Values 0 to 15, [blocks, 8, 32], as pairs of neighbouring groups."""
    pairs = values.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    head, values = _scales_and_mins(blocks, 15)
    return np.concatenate([head, _nibbles(values)], axis=-1)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    head, values = _scales_and_mins(blocks, 31)
    bits = np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce((values >> 4) << bits, axis=1).astype(np.uint8)
    return np.concatenate([head, high, _nibbles(values & 15)], axis=-1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    parts = blocks.reshape(-1, 16, 16)
    step = np.abs(parts).max(-1) / 31
    d = (step.max(-1, keepdims=True) / 127).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.nan_to_num(np.rint(step / d.astype(np.float32)), posinf=0).clip(0, 127).astype(np.int8)
        real_step = (scales * d.astype(np.float32))[..., None]
        values = np.nan_to_num(np.rint(parts / real_step), posinf=0, neginf=0).clip(-32, 31)
    # Two halves of 128 values, each of four groups of 32.
    groups = (values.astype(np.int8) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (groups[:, :, :2] & 15) | (groups[:, :, 2:] & 15) << 4
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce((groups >> 4) << shifts, axis=2).astype(np.uint8)
    return np.concatenate(
        [low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), _half(d)], axis=-1
    )  # fmt: skip
