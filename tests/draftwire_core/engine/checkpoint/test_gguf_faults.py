"""A damaged, hostile or unsupported GGUF file is refused with the tensor or the key that is wrong."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config

from benchmarks.faults.fuzz_gguf import attack
from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_header import MOST_HEADER
from tests.harness.models.gguf_model import SMALLEST, write_gguf

CONFIG = LlamaConfig(**SMALLEST)
Q, K, NORM = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(LlamaForCausalLM(CONFIG).state_dict())


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("valid") / "model.gguf", CONFIG, weights(), "Q8_0").read_bytes()


def refused(path: Path, content: bytes, reason: str) -> None:
    path = path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=reason) as error:
        GgufFile.open(path).config()
    assert str(error.value).startswith(f"GGUF file {path}: ")


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def header(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"GG", "begins with b'GG', not with b'GGUF'"),
        (b"\x80\x02}q\x00" * 9, "is not a GGUF file"),
        (b"GGUF", "the version: the file ends within it, after 4 bytes"),
        (header(0, 0, version=1), "has version 1; supported are little-endian files of versions 2 and 3"),
        (header(0, 0, version=3 << 24), "is big-endian"),
        (header(2**64 - 1, 0), "claims 18446744073709551615 tensors; at most 65536"),
        (header(0, 2**63), "claims 9223372036854775808 keys; at most 65536"),
        (header(60_000, 0), "claims 60000 tensors, which do not fit into its 24 bytes"),
        (header(0, 1, struct.pack("<Q", 2**60) + bytes(9)), "a key: claims 1152921504606846976 bytes"),
        (header(0, 1, string("a b") + struct.pack("<IB", 0, 1)), "a key at byte 32: b'a b' is not a name"),
        (header(0, 1, string("k") + struct.pack("<IB", 77, 1)), "metadata k: has unknown type 77"),
        (header(0, 1, string("k") + struct.pack("<IQ", 8, 2**40)), "metadata k: claims 1099511627776 bytes"),
        (header(0, 1, string("k") + struct.pack("<IQ", 8, 20)), "metadata k: the file ends within it|claims 20 bytes"),
        (
            header(0, 1, string("general.architecture") + struct.pack("<IQ", 8, 2) + b"\xff\xff"),
            r"metadata general\.architecture: is not UTF-8",
        ),
        (header(0, 1, string("k") + struct.pack("<IIQ", 9, 4, 2**62)), "metadata k: claims 4611686018427387904 elem"),
        (header(0, 1, string("k") + struct.pack("<IIQ", 9, 8, 2**22)), "metadata k: the file ends within it"),
        (header(0, 1, string("k") + struct.pack("<IIQ", 9, 9, 1)), "metadata k: is a list of elements of unsupported"),
        (header(0, 2, 2 * (string("key") + struct.pack("<IB", 0, 1))), "metadata key: duplicate key"),
        (header(1, 0, entry("t" * 65, (32,), 0, 0)), "the name of a tensor: claims 65 bytes"),
        (header(1, 0, string("t") + struct.pack("<I", 2**31) + bytes(32)), "tensor t: claims 2147483648 dimensions"),
        (
            header(1, 0, entry("t", (32,), 77, 0)),
            r"tensor t: has unknown type 77; supported are F32, .*: quantise the model to",
        ),
        (header(1, 0, entry("t", (256,), 15, 0)), "tensor t: has type Q8_K; supported are F32, F16, BF16, Q8_0, Q4_0"),
        (header(1, 0, entry("t", (33, 2), 8, 0)), "tensor t: has rows of 33 values, which are no whole Q8_0 blocks"),
        (header(1, 0, entry("t", (0, 2), 8, 0)), r"tensor t: has the empty shape \[2, 0\]"),
        (header(1, 0, entry("t", (32,), 0, 8)), "tensor t: its offset is no multiple of the alignment, 32 bytes"),
        (header(1, 0, entry("t", (32,), 0, 2**63)), "tensor t: F32 of shape .* but the file has 57"),
        (header(1, 0, entry("t", (2**62, 2**62), 0, 0)), "tensor t: F32 of shape .* but the file has 65"),
        (header(2, 0, 2 * entry("t", (2,), 0, 0) + bytes(64)), "tensor t: duplicate name"),
        (header(2, 0, entry("t", (9,), 0, 0) + entry("u", (2,), 0, 32) + bytes(96)), "tensor u: overlaps another"),
        (header(0, 0), r"metadata general\.architecture: is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_headers_that_are_wrong(content: bytes, reason: str, tmp_path: Path) -> None:
    refused(tmp_path, content, reason)


def test_a_text_in_another_encoding_that_nobody_needs(tmp_path: Path) -> None:
    """llama-quantize on Windows writes the path of its matrix as the system has it."""

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_string("quantize.imatrix.file", r"C:\S?hne\imatrix.dat")

    path = write_gguf(tmp_path / "model.gguf", CONFIG, weights(), "F32", change=change)
    path.write_bytes(path.read_bytes().replace(b"S?hne", "Söhne".encode("cp1252")))
    assert GgufFile.open(path).config().hidden_size == CONFIG.hidden_size


def test_a_header_is_bounded(tmp_path: Path) -> None:
    """A vocabulary of hundreds of megabytes is not read to its end."""
    rest = string("k") + struct.pack("<IIQ", 9, 8, 1 << 22)
    path = tmp_path / "model.gguf"
    path.write_bytes(header(0, 1, rest + struct.pack("<Q", MOST_HEADER + 1)))
    with path.open("r+b") as file:
        file.truncate(1 << 32)  # takes no place on the disk
    with pytest.raises(ModelLoadError, match=f"metadata k: the header has more than {MOST_HEADER} bytes"):
        GgufFile.open(path)


def test_a_file_that_is_cut_short(valid: bytes, tmp_path: Path) -> None:
    """At every length of the header, and within the tensors."""
    path = tmp_path / "model.gguf"
    path.write_bytes(valid)
    start = gguf.GGUFReader(path).data_offset
    for length in [*range(1, start, 7), *range(start, len(valid), 1013), len(valid) - 1]:
        # The last tensor is followed by padding, which may be missing.
        path.write_bytes(valid[:length])
        with pytest.raises(ModelLoadError, match=r"^GGUF file .*model\.gguf: "):
            GgufFile.open(path)
    refused(tmp_path, valid[: start + 100], r"tensor \S+: Q8_0 of shape .* but the file has")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing.gguf", tmp_path / "pipe", tmp_path / ("x" * 4000)):
        with pytest.raises(ModelLoadError, match=r"there is no such file|cannot be read"):
            GgufFile.open(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({Q: None}, r"tensor blk\.0\.attn_q\.weight: is missing"),
        ({NORM: None}, r"tensor output_norm\.weight: is missing"),
        ({"model.embed_tokens.weight": None}, r"tensor token_embd\.weight: is missing"),
        ({K: (16, 64)}, r"tensor blk\.1\.attn_k\.weight: has shape \[16, 64\], but the metadata say \[32, 64\]"),
        ({NORM: (1, 64)}, r"tensor output_norm\.weight: has shape \[1, 64\], but the metadata say \[64\]"),
        ({"lm_head.weight": (95, 64)}, r"tensor output\.weight: has shape \[95, 64\]"),
        ({"model.embed_tokens.weight": (95, 64)}, r"metadata llama\.vocab_size: has 96 tokens, but .* 95 rows"),
        ({"model.layers.0.self_attn.q_proj.bias": (64,)}, r"tensor blk\.0\.attn_k\.bias: is missing"),
        ({"model.layers.1.self_attn.q_proj.bias": (64,)}, r"tensor blk\.1\.attn_q\.bias: is not known for .* llama"),
    ],
)
def test_tensors_that_do_not_fit(change: Mapping[str, Any], reason: str, tmp_path: Path) -> None:
    given = weights() | {name: None if shape is None else torch.zeros(shape) for name, shape in change.items()}
    present = {name: weight for name, weight in given.items() if weight is not None}
    content = write_gguf(tmp_path / "written.gguf", CONFIG, present, "F32").read_bytes()
    refused(tmp_path, content, reason)


def test_a_tensor_of_another_kind_of_model(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q_norm.weight", np.ones(16, np.float32))

    content = write_gguf(tmp_path / "written.gguf", CONFIG, weights(), "F32", change=change).read_bytes()
    refused(tmp_path, content, r"tensor blk\.0\.attn_q_norm\.weight: is not known for architecture llama")


def test_a_vector_that_is_quantised(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        blocks = gguf.quantize(np.ones(64, np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("output_norm.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    rest = {name: weight for name, weight in weights().items() if name != NORM}
    content = write_gguf(tmp_path / "written.gguf", CONFIG, rest, change=change).read_bytes()
    refused(tmp_path, content, r"tensor output_norm\.weight: has type Q8_0; vectors are not quantised")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            "general.architecture",
            "mamba",
            r"'mamba' is not supported; give the model's directory of safetensors instead \(supported are arcee, ",
        ),
        ("llama.attention.causal", False, "is false; models that see the tokens to come do not generate text"),
        ("general.alignment", 48, "is 48; must be a power of two, at least 8"),
        ("general.alignment", 0, "is 0; must be a power of two, at least 8"),
        ("llama.block_count", 2**32 - 1, "is 4294967295, but the file has tensors of 2 layers"),
        ("llama.feed_forward_length", 2**62, f"is {2**62}, but no tensor in the file has a size above 128"),
        ("llama.block_count", 0, "is 0; must be positive"),
        ("llama.embedding_length", -64, "is -64; must not be negative"),
        ("llama.embedding_length", 64.0, "is not a whole number"),
        ("llama.embedding_length", None, "is missing"),
        ("llama.attention.head_count", "4", "is not a whole number"),
        ("llama.attention.head_count", [4, 2], r"is \[2, 4\] in different layers"),
        ("llama.attention.head_count", 2**64 - 1, ""),
        ("llama.attention.head_count_kv", 3, "is 3, which does not divide 4"),
        ("llama.attention.key_length", 15, "is 15; must be even"),
        ("llama.rope.dimension_count", 8, "is 8, not the length of a key, 16: not supported"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan; must be finite"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0, "is 0.0; must be positive"),
        ("llama.rope.freq_base", -1.0, "is -1.0; must be positive"),
        ("llama.rope.freq_base", True, "is not a number"),
        ("llama.rope.scaling.type", "longrope", "'longrope' is not supported; supported are none, linear and yarn"),
        ("llama.rope.scaling.factor", 0.5, "is 0.5; must be at least 1"),
        ("llama.rope.scaling.attn_factor", 2.0, "is 2.0; only 1.0 is supported"),
        ("split.count", 3, r"is 3, and the parts of a model have names such as model-00001-of-00003\.gguf"),
        ("llama.expert_count", 2**40, "is 1099511627776, but no tensor in the file has a size above 128"),
        ("llama.nextn_predict_layers", 2, "is 2, but the file has 2 layers"),
        ("tokenizer.ggml.eos_token_id", "2", "is not a whole number"),
        ("tokenizer.ggml.tokens", ["a", "b"], "has 2 tokens, but token_embd.weight 96 rows"),
        ("tokenizer.ggml.tokens", [1, 2], "is not a list of strings"),
    ],
)
def test_metadata_that_do_not_fit(key: str, value: Any, reason: str, tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        add: Mapping[type, Callable[[str, Any], None]] = {
            str: writer.add_string,
            bool: writer.add_bool,
            float: writer.add_float32,
            list: writer.add_array,
        }
        if isinstance(value, int) and not isinstance(value, bool):
            writer.add_int64(key, value) if value < 0 else writer.add_uint64(key, value)
        elif value is not None:
            add[type(value)](key, value)

    if key == "general.alignment":  # the writer would heed it

        def change(writer: gguf.GGUFWriter) -> None:
            writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.UINT32)

    written = write_gguf(tmp_path / "written.gguf", CONFIG, weights(), "F32", change=change)
    # Absurd dimensions are found where a tensor does not have them.
    told = rf"metadata {key}: {reason}" if reason else r"tensor \S+: (is missing|has shape)|metadata llama\."
    refused(tmp_path, written.read_bytes(), told)


def test_a_scale_of_queries_that_the_model_does_not_have(tmp_path: Path) -> None:
    """Mistral Large 3 has the architecture of DeepSeek V3, and grows queries beyond its original context."""

    def change(writer: gguf.GGUFWriter) -> None:
        values = writer.kv_data[0]
        values |= {name.replace("llama.", "deepseek2."): value for name, value in values.items()}
        values.pop("general.architecture")
        writer.add_string("general.architecture", "deepseek2")
        for name in ("expert_count", "expert_used_count", "expert_feed_forward_length"):
            writer.add_uint32(f"deepseek2.{name}", 2)
        writer.add_float32("deepseek2.attention.temperature_scale", 0.1)

    content = write_gguf(tmp_path / "written.gguf", CONFIG, weights(), "F32", change=change).read_bytes()
    refused(tmp_path, content, r"metadata deepseek2\.attention\.temperature_scale: is not supported")


def test_factors_of_another_rotary_embedding(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))

    content = write_gguf(tmp_path / "written.gguf", CONFIG, weights(), "F32", change=change).read_bytes()
    refused(tmp_path, content, r"tensor rope_freqs\.weight: has other factors than those of Llama 3\.1")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_at_random(seed: int, tmp_path: Path) -> None:
    """`benchmarks.faults.fuzz_gguf` runs longer."""
    findings = attack(tmp_path, seed, 200)
    assert findings.faults == []
    assert findings.refused.keys() == {"file", "metadata", "tensor"}


def test_a_mixture_of_an_architecture_without_any(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)

    config = Qwen2Config(**SMALLEST)
    content = write_gguf(tmp_path / "written.gguf", config, weights(), "F32", change=change).read_bytes()
    refused(tmp_path, content, r"metadata qwen2\.expert_count: architecture qwen2: mixtures of experts are not supp")
