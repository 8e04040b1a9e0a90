"""Opens thousands of damaged GGUF files: each is read, or refused with one line that names the file.

    python -m benchmarks.faults.fuzz_gguf [--files 10000] [--seed 1] [--json]

Small valid files, one for each kind of tokenizer, a hybrid with experts, and one whose matrices have all types without
a product of their own, are corrupted at random: bits, numbers, lengths, types and offsets of the header, parts that are
missing, doubled or exchanged, and files cut short. Each is opened in this process, and if that succeeds, its
configuration, its tokenizer and the values of all its tensors are read, and its matrices made into weights. The exit
status is 1 if anything but ModelLoadError is raised, if an error does not name the file, if a file takes longer than
its bound, or if the memory grows beyond its bound. A crash ends the process, and leaves behind the file that did it.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import gguf
import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE

from benchmarks.faults.gguf_mutations import mutate_file
from benchmarks.harness.report import add_report_options, end_with_faults
from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_header import BLOCK_SIZES, CONVERTED_TYPES
from draftwire_core.engine.model.linear.group_weight import GroupWeight
from draftwire_core.engine.model.reading.gguf_model import StoredWeights

SECONDS = 10.0
"""Seconds within which every file must be read or refused."""
MOST_GROWTH = 256 << 20
"""Most bytes by which the peak of the memory may grow."""
_VALUES, _HEADS, _TOKENS, _MOST_FAULTS = 64, 4, 16, 20
_INPUTS = 256
"""Inputs of matrices in superblocks."""

_Shapes = dict[str, tuple[int, ...]]


@dataclass
class GgufFindings:
    """Counts and faults of a fuzzing run."""

    read: int = 0
    """Files that were still valid, or whose damage was in a value."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by what the error names first: a tensor, metadata, or the file."""
    longest: float = 0.0
    """Seconds of the slowest file."""
    growth: int = 0
    """Bytes by which the peak of the memory grew."""
    faults: list[str] = field(default_factory=list)
    """Descriptions of faults."""


def write_valid(path: Path, tokenizer: str) -> int:
    """Writes a small valid file of one Llama layer; returns the bytes of its header.

    tokenizer: one of TOKENIZERS.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(_VALUES)
    writer.add_feed_forward_length(2 * _VALUES)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(2.0)
    {"merges": _add_merges, "scores": _add_scores, "whole": _add_whole}[tokenizer](writer)
    writer.add_eos_token_id(6)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    rng = np.random.default_rng(0)
    shapes: _Shapes = {"token_embd.weight": (_TOKENS, _VALUES), "output_norm.weight": (_VALUES,)}
    shapes |= {f"blk.0.attn_{part}.weight": (_VALUES, _VALUES) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}.weight": (2 * _VALUES, _VALUES) for part in ("gate", "up")}
    shapes |= {"blk.0.ffn_down.weight": (_VALUES, 2 * _VALUES)}
    shapes |= {f"blk.0.{part}_norm.weight": (_VALUES,) for part in ("attn", "ffn")}
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        values = rng.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = gguf.GGUFReader(path)
    return int(reader.data_offset)


def write_hybrid(path: Path) -> int:
    """Writes a small valid file of a hybrid with experts, Qwen 3.5's; returns the bytes of its
    header."""
    name = "qwen35moe"
    writer = gguf.GGUFWriter(path, name)
    numbers = {"block_count": 2, "context_length": 128, "embedding_length": _VALUES, "full_attention_interval": 2}
    numbers |= {"attention.head_count": _HEADS, "attention.head_count_kv": _HEADS, "attention.key_length": 16}
    numbers |= {"attention.value_length": 16, "rope.dimension_count": 4, "expert_count": 4, "expert_used_count": 2}
    numbers |= {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32, "ssm.conv_kernel": 4}
    numbers |= {"ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": _VALUES}
    for key, number in numbers.items():
        writer.add_uint32(f"{name}.{key}", number)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_sections([1, 1, 0, 0])
    _add_whole(writer)
    experts: _Shapes = {f"ffn_{part}_exps.weight": (4, 32, _VALUES) for part in ("gate", "up")}
    experts |= {f"ffn_{part}_shexp.weight": (32, _VALUES) for part in ("gate", "up")}
    experts |= {"ffn_down_exps.weight": (4, _VALUES, 32), "ffn_down_shexp.weight": (_VALUES, 32)}
    experts |= {"ffn_gate_inp.weight": (4, _VALUES), "ffn_gate_inp_shexp.weight": (1, _VALUES)}
    experts |= {f"{part}_norm.weight": (_VALUES,) for part in ("attn", "post_attention")}
    state: _Shapes = {
        "attn_qkv.weight": (128, _VALUES),
        "attn_gate.weight": (_VALUES, _VALUES),
        "ssm_conv1d.weight": (128, 4),
    }
    state |= {"ssm_a": (4,), "ssm_dt.bias": (4,), "ssm_norm.weight": (16,), "ssm_out.weight": (_VALUES, _VALUES)}
    state |= {f"ssm_{part}.weight": (4, _VALUES) for part in ("alpha", "beta")}
    attention: _Shapes = {f"attn_{part}.weight": (_VALUES, _VALUES) for part in ("k", "v", "output")}
    attention |= {"attn_q.weight": (2 * _VALUES, _VALUES)} | {f"attn_{part}_norm.weight": (16,) for part in ("q", "k")}
    shapes: _Shapes = {"token_embd.weight": (_TOKENS, _VALUES), "output_norm.weight": (_VALUES,)}
    shapes |= {f"blk.0.{part}": shape for part, shape in (experts | state).items()}
    shapes |= {f"blk.1.{part}": shape for part, shape in (experts | attention).items()}
    rng = np.random.default_rng(0)
    for tensor, shape in shapes.items():
        writer.add_tensor(tensor, -rng.random(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return int(gguf.GGUFReader(path).data_offset)


def write_converted(path: Path) -> int:
    """Writes a small valid file of two Llama layers, whose matrices are random blocks of all types without a product of
    their own; returns the bytes of its header, about."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(_INPUTS)
    writer.add_feed_forward_length(_INPUTS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_whole(writer)
    outputs = {"attn_q": _INPUTS, "attn_k": _INPUTS // _HEADS, "attn_v": _INPUTS // _HEADS, "attn_output": _INPUTS}
    outputs |= {f"ffn_{part}": _INPUTS for part in ("gate", "up", "down")}
    matrices = {"token_embd.weight": _TOKENS, "output.weight": _TOKENS}
    matrices |= {f"blk.{layer}.{name}.weight": count for layer in range(2) for name, count in outputs.items()}
    rng = np.random.default_rng(0)
    numbers = {block.type_name: number for number, block in BLOCK_SIZES.items()}
    for (name, count), type_name in zip(matrices.items(), CONVERTED_TYPES, strict=True):
        number = numbers[type_name]
        _, values, size = BLOCK_SIZES[number]
        blocks = rng.integers(0, 256, (count, _INPUTS // values * size), dtype=np.uint8)
        # As int8, since the package does not know the blocks of all types.
        kind = cast(gguf.GGMLQuantizationType, number)
        writer.add_tensor(name, blocks.view(np.int8), raw_shape=(count, _INPUTS), raw_dtype=kind)
    norms = ["output_norm", *(f"blk.{layer}.{part}_norm" for layer in range(2) for part in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(_INPUTS, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size - sum(tensor.nbytes for tensor in writer.tensors[0].values())


def _add_merges(writer: gguf.GGUFWriter) -> None:
    """Adds a tokenizer like those of Qwen's models."""
    tokens = ["<|endoftext|>", "a", "b", "ab", "Ġ", "Ġa", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *(f"[PAD{token}]" for token in range(len(tokens), _TOKENS))])
    writer.add_token_types([3, 1, 1, 1, 1, 1, 3, *[5] * (_TOKENS - len(tokens))])
    writer.add_token_merges(["a b", "Ġ a"])


def _add_scores(writer: gguf.GGUFWriter) -> None:
    """Adds a tokenizer like those of SentencePiece."""
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "<end>", "ab", "▁a", "▁ab", *"cdefgh"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(token) for token in range(_TOKENS)])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 3, *[1] * (_TOKENS - 7)])
    writer.add_unk_token_id(0)


def _add_whole(writer: gguf.GGUFWriter) -> None:
    """Adds a tokenizer.json."""
    backend = Tokenizer(BPE({chr(ord("a") + token): token for token in range(_TOKENS)}, []))
    backend.add_special_tokens(["g"])
    writer.add_string(gguf.Keys.Tokenizer.HF_JSON, backend.to_str())


TOKENIZERS = ("merges", "scores", "whole")
"""Kinds of tokenizers."""


def read_all(path: Path) -> None:
    """Reads everything that a file has. Raises ModelLoadError."""
    file = GgufFile.open(path)
    file.config()
    file.tokenizer()
    for tensor in file.tensors.values():
        if tuple(tensor.dequantised().shape) != tensor.shape:
            raise AssertionError(f"values of shape {tensor.dequantised().shape}, not {tensor.shape}")
        if len(tensor.shape) == 2:
            weight = StoredWeights().of_parameter(tensor)
            if isinstance(weight, GroupWeight):
                weight.rows(0, weight.outputs)


def attack(folder: Path, seed: int, files: int) -> GgufFindings:
    """Reads damaged files, which are written to the folder one after the other."""
    findings = GgufFindings()
    rng = random.Random(seed)
    valid = []
    writers: list[Callable[[Path], int]] = [partial(write_valid, tokenizer=each) for each in TOKENIZERS]
    for write in (*writers, write_hybrid, write_converted):
        path = folder / "valid.gguf"
        header = write(path)
        valid.append((path.read_bytes(), header))
        read_all(path)  # imports, too, take memory
        path.unlink()
    before = _peak()
    for number in range(files):
        path = folder / f"{seed}-{number}.gguf"
        path.write_bytes(mutate_file(*rng.choice(valid), rng))
        started = time.monotonic()
        try:
            read_all(path)
            findings.read += 1
        except ModelLoadError as error:
            told = str(error)
            named = told.removeprefix(f"GGUF file {path}: ")
            findings.refused[named.split()[0] if named.startswith(("tensor", "metadata")) else "file"] += 1
            if named == told or "\n" in told or len(told) > 1000:
                findings.faults.append(f"file {number}: the error is {told[:500]!r}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            findings.faults.append(f"file {number}: {type(error).__name__}: {error}")
        took = time.monotonic() - started
        findings.longest = max(findings.longest, took)
        if took > SECONDS:
            findings.faults.append(f"file {number}: took {took:.1f} s")
        path.unlink()
        if len(findings.faults) >= _MOST_FAULTS:
            break
    findings.growth = _peak() - before
    if findings.growth > MOST_GROWTH:
        findings.faults.append(f"memory grew by {findings.growth >> 20} MiB")
    return findings


def _peak() -> int:
    """Returns the most bytes of memory that the process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Reads damaged files and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="number of damaged files")
    parser.add_argument("--seed", type=int, default=None, help="seed of everything random; printed")
    add_report_options(parser)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-gguf-"))
    findings = attack(folder, seed, options.files)
    folder.rmdir()
    figures: dict[str, object] = {
        "seed": seed,
        "files": findings.read + findings.refused.total(),
        "read": findings.read,
        "refused, by what is named": dict(sorted(findings.refused.items())),
        "seconds": round(time.monotonic() - started),
        "slowest file, s": round(findings.longest, 2),
        "memory grew by, MiB": findings.growth >> 20,
        "faults": len(findings.faults),
    }
    end_with_faults("fuzz_gguf", figures, findings.faults, options)


if __name__ == "__main__":
    main()
