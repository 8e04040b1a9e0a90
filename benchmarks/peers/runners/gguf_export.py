"""Exports a Llama checkpoint, or a Qwen3.5 one, to llama.cpp's format, in bfloat16 or quantised."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np

from benchmarks.peers.llama_programs import llama_program
from benchmarks.peers.runners import gguf_hybrid

WEIGHTS = ("bf16", "q8_0", "q4_0", "q4_k", "q4_k_m")
"""Types of all matrices; q4_k_m is llama.cpp's mixture of Q4_K and Q6_K."""
_BY_LLAMA_QUANTIZE = {"q4_k": ("--pure", "Q4_K_S"), "q4_k_m": ("Q4_K_M",)}
"""Options of llama-quantize for the types that the library `gguf` does not write."""
_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def exported(model: str, cache: str, weights: str = "bf16", llama_cpp: str = "") -> Path:
    """Returns the model as one file, made once.

    weights: one of WEIGHTS. llama_cpp: directory of llama.cpp's programs, which quantise to q4_k and q4_k_m. Raises
    FileNotFoundError without them, RuntimeError with the last words of one that fails, and ValueError if the
    checkpoint's weights are not bfloat16.
    """
    place = Path(cache) / f"{Path(model).name}-{weights}.gguf"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            if weights in _BY_LLAMA_QUANTIZE:
                program = llama_program(llama_cpp, "llama-quantize")
                _quantise(program, exported(model, cache), unfinished, *_BY_LLAMA_QUANTIZE[weights])
            else:
                _export(Path(model), unfinished, gguf.GGMLQuantizationType[weights.upper()])
            unfinished.rename(place)
        finally:
            unfinished.unlink(missing_ok=True)
    return place


def _quantise(program: Path, source: Path, out: Path, *options: str) -> None:
    """Runs llama-quantize. options: flags, then the type."""
    command = [str(program), *options[:-1], str(source), str(out), options[-1]]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{program.name} ends with status {ran.returncode}: {' '.join(ran.stderr.split()[-30:])}")


def _export(model: Path, out: Path, kind: gguf.GGMLQuantizationType) -> None:
    config = json.loads((model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hybrid = config["model_type"] == "qwen3_5_text"
    writer = gguf.GGUFWriter(str(out), gguf_hybrid.ARCHITECTURE if hybrid else "llama")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rotated = config["rope_parameters"].get("partial_rotary_factor", 1.0) if hybrid else 1.0
    writer.add_rope_dimension_count(int(config["head_dim"] * rotated))
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if hybrid:
        gguf_hybrid.describe(writer, config)
    _add_vocabulary(writer, model, config)
    for name, values in _weights(model / "model.safetensors"):
        vector = gguf_hybrid.vector(name, _floats(values)) if hybrid else None
        if vector is not None:
            writer.add_tensor(*vector)
            continue
        if "norm" in name:
            writer.add_tensor(_named(name), _floats(values))
            continue
        if not hybrid and ("q_proj" in name or "k_proj" in name):
            values = _interleaved(values, heads if "q_proj" in name else kv_heads)
        if kind != gguf.GGMLQuantizationType.BF16:
            found = gguf.quants.quantize(_floats(values), kind)
        else:
            found = values.view(np.uint8)
        writer.add_tensor(_named(name), found, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, model: Path, config: dict[str, Any]) -> None:
    """Adds a vocabulary. Requests come as token ids, so how text is split does not matter."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    names = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    special = {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
    numbers = range(config["vocab_size"])
    kinds = [gguf.TokenType.CONTROL if n in special else gguf.TokenType.NORMAL for n in numbers]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([special.get(n) or names.get(n) or f"[unused {n}]" for n in numbers])
    writer.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _weights(path: Path) -> list[tuple[str, Any]]:
    """Yields the name and the bits, as uint16, of each tensor: numpy has no bfloat16."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:start]))
    found = []
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "BF16":
            raise ValueError(f"{name} is {about['dtype']}, not BF16")
        first, last = about["data_offsets"]
        bits = np.frombuffer(bytes(data[start + first : start + last]), np.uint16)
        found.append((name, bits.reshape(about["shape"])))
    return found


def _floats(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _named(name: str) -> str:
    base = name.removesuffix(".weight")
    if base in _WHOLE:
        return f"{_WHOLE[base]}.weight"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{_LAYER.get(part) or gguf_hybrid.NAMES[part]}.weight"


def _interleaved(values: Any, heads: int) -> Any:
    """Returns rows in the order of llama.cpp's rotation, which pairs neighbours where transformers pairs halves."""
    rows, columns = values.shape
    return np.ascontiguousarray(values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)).reshape(
        rows, columns
    )
