"""A model in a GGUF file is the model that was written: tensors, configuration, tokenizer."""

from __future__ import annotations

import itertools
import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as TokenizersTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import SPLITTINGS
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models.gguf_model import QUANTISERS, SMALLEST, quantise, write_checkpoint_as_gguf, write_gguf

TARGET = Path(__file__).resolve().parents[4] / "models" / "target"
SIZES: dict[str, Any] = SMALLEST | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def made(config: PretrainedConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too, differ from each other
            parameter.add_(torch.randn_like(parameter) * 0.02)
            parameter.copy_(parameter.bfloat16())  # so that nothing is lost where a file adds 1
    return model


def written(path: Path, config: PretrainedConfig, type_name: str = "F32", **options: Any) -> GgufFile:
    return GgufFile.open(write_gguf(path / "model.gguf", config, made(config).state_dict(), type_name, **options))


CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "other heads": LlamaConfig(**SIZES, head_dim=32),
    "linear": LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama3": LlamaConfig(**SIZES | {"hidden_size": 256, "max_position_embeddings": 131072}, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "yarn": Qwen2Config(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, rms_norm_eps=1e-6),
    "gemma3": Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7, "bos_token_id": None},
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=24,
        rms_norm_eps=1e-6,
    ),
}


class Written(NamedTuple):
    """A model of a configuration, and its file."""

    config: PretrainedConfig
    model: torch.nn.Module
    file: GgufFile


@pytest.fixture(scope="module", params=CONFIGS)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A model of each configuration."""
    config = CONFIGS[request.param]
    model, path = made(config), tmp_path_factory.mktemp("each") / "model.gguf"
    return Written(config, model, GgufFile.open(write_gguf(path, config, model.state_dict(), "F32")))


def test_a_model_gives_the_same_logits_as_before(each: Written) -> None:
    config, model, file = each
    again = AutoModelForCausalLM.from_config(file.config()).eval()
    missing, unexpected = again.load_state_dict(
        {name: tensor.dequantised() for name, tensor in file.tensors.items()}, strict=False
    )
    assert missing == (["lm_head.weight"] if config.tie_word_embeddings else []) and unexpected == []
    tokens = torch.arange(90)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_the_configuration_is_the_one_before(each: Written) -> None:
    before, after = each.config.to_dict(), each.file.config().to_dict()
    # Chosen where a model is made, or without meaning where no window slides.
    free = {"architectures", "dtype", "head_dim", "pad_token_id", "bos_token_id", "eos_token_id"}
    assert {key: after[key] for key in before.keys() - free} == {key: before[key] for key in before.keys() - free}
    heads = before.get("head_dim") or before["hidden_size"] // before["num_attention_heads"]
    assert after["head_dim"] == heads


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", ["llama", "tied", "qwen2"])
def test_values_are_those_that_transformers_reads(kind: str, type_name: str, tmp_path: Path) -> None:
    file = written(tmp_path, CONFIGS[kind], type_name)
    loaded = load_gguf_checkpoint(str(file.path), return_tensors=True, model_to_load=made(CONFIGS[kind]))
    theirs = loaded["tensors"]
    assert theirs.keys() == file.tensors.keys()
    for name, tensor in file.tensors.items():
        assert torch.equal(tensor.dequantised(), theirs[name]), name


def test_mistral_is_a_llama(tmp_path: Path) -> None:
    config = MistralConfig(**SIZES, sliding_window=None)
    model = made(config)
    file = GgufFile.open(write_gguf(tmp_path / "model.gguf", config, model.state_dict(), "F32"))
    again = AutoModelForCausalLM.from_config(file.config()).eval()
    again.load_state_dict({name: tensor.dequantised() for name, tensor in file.tensors.items()})
    assert file.config().model_type == "llama"
    tokens = torch.arange(90)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("type_name", QUANTISERS)
def test_blocks_and_values_are_those_that_were_written(type_name: str, tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES | {"hidden_size": 256, "intermediate_size": 512})
    weights = made(config).state_dict()
    file = GgufFile.open(write_gguf(tmp_path / "model.gguf", config, weights, type_name))
    assert file.tensors.keys() == weights.keys()
    for name, tensor in file.tensors.items():
        values = weights[name].numpy()
        assert tensor.shape == values.shape
        assert tensor.type == (type_name if values.ndim > 1 else "F32")
        # The same blocks as of rows that were never permuted.
        blocks = quantise(values, tensor.type)
        assert tensor.raw.dtype == torch.uint8
        assert tensor.raw.shape == (*values.shape[:-1], blocks.nbytes // (blocks.size // blocks.shape[-1]))
        assert np.array_equal(tensor.raw.numpy(), blocks.view(np.uint8))
        expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[tensor.type])
        dequantised = tensor.dequantised()
        assert dequantised.dtype == torch.float32 and np.array_equal(dequantised.numpy(), expected)
        error = np.abs(expected - values).max() / np.abs(values).max()
        most = {"Q4_0": 0.13, "Q4_1": 0.08, "Q5_0": 0.07, "Q5_1": 0.04, "Q4_K": 0.1, "Q5_K": 0.05, "MXFP4": 0.3}
        assert error < most.get(tensor.type, 0.03)


def test_a_file_of_several_types(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES | {"hidden_size": 256, "intermediate_size": 512})
    weights = made(config).state_dict()
    types = dict(zip((name for name, weight in weights.items() if weight.ndim > 1), itertools.cycle(QUANTISERS)))
    path = write_gguf(tmp_path / "model.gguf", config, weights, lambda name: types.get(name, "F32"))
    tensors = GgufFile.open(path).tensors
    assert {name: tensors[name].type for name in types} == types and set(types.values()) == set(QUANTISERS)


def test_blocks_are_views_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, CONFIGS["qwen2"], "Q8_0")
    raws = [tensor.raw for tensor in file.tensors.values()]
    assert len({raw.untyped_storage().data_ptr() for raw in raws}) == 1
    assert raws[0].untyped_storage().nbytes() == file.path.stat().st_size
    assert all(raw.is_contiguous() and raw.data_ptr() % 32 == 0 for raw in raws)


def resident() -> int:
    """Bytes of memory that the process holds, those of mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_opening_reads_no_tensor(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES | {"vocab_size": 100_000, "hidden_size": 128})
    path = write_gguf(tmp_path / "model.gguf", config, made(config).state_dict(), "F32")
    before = resident()
    file = GgufFile.open(path)
    assert path.stat().st_size > 100_000_000 and resident() - before < 10_000_000
    # Writing to a view does not change the file.
    file.tensors["model.norm.weight"].raw[:] = 0
    assert GgufFile.open(path).tensors["model.norm.weight"].raw.any()


def test_version_2_is_read(tmp_path: Path) -> None:
    file = written(tmp_path, CONFIGS["llama"])
    content = bytearray(file.path.read_bytes())
    content[4:8] = (2).to_bytes(4, "little")
    (tmp_path / "older.gguf").write_bytes(content)
    older = GgufFile.open(tmp_path / "older.gguf")
    for name, tensor in file.tensors.items():
        assert torch.equal(older.tensors[name].raw, tensor.raw)


def test_another_alignment(tmp_path: Path) -> None:
    def align(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(mmap.PAGESIZE)

    file = written(tmp_path, CONFIGS["llama"], change=align)
    assert all(tensor.parts[0].raw.storage_offset() % mmap.PAGESIZE == 0 for tensor in file.tensors.values())


@pytest.mark.parametrize(
    ("keys", "ends"),
    [
        ({"eos": 3}, 3),
        ({"eos": 3, "eot": 3}, 3),
        ({"eos": 3, "eot": 5, "eom": 4}, [3, 5, 4]),
        ({"eos": 3, "eot": 96, "padding": 2**32 - 1}, 3),
        ({}, None),
    ],
)
def test_tokens_that_end_a_text(keys: dict[str, int], ends: object, tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        for role, token in keys.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)

    assert written(tmp_path, CONFIGS["llama"], change=change).config().eos_token_id == ends


@pytest.mark.parametrize("type_name", ["BF16", "F16", "Q5_0", "Q4_1"])
def test_a_scaled_embedding_that_is_the_head_too(type_name: str, tmp_path: Path) -> None:
    config = CONFIGS["gemma3"]
    path = write_gguf(tmp_path / "model.gguf", config, made(config).state_dict(), type_name)
    model = PackedModel.load(str(path), slots=64)
    report = run_self_test(model)
    assert report.bit_exact and report.error <= report.tolerance


def test_factors_of_another_architecture_are_refused(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(16, np.float32))

    path = write_gguf(tmp_path / "model.gguf", CONFIGS["gemma3"], made(CONFIGS["gemma3"]).state_dict(), change=change)
    with pytest.raises(ModelLoadError, match=r"tensor rope_freqs\.weight: is not supported for architecture gemma3"):
        GgufFile.open(path).config()


def test_special_tokens_that_end_a_text_by_their_names(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_eos_token_id(7)
        writer.add_token_list([{5: "<|eot_id|>", 6: "<|im_end|>"}.get(token, f"t{token}") for token in range(96)])
        writer.add_token_types([3 if token == 5 else 1 for token in range(96)])

    assert written(tmp_path, CONFIGS["llama"], change=change).config().eos_token_id == [7, 5]


# ---- the tokenizer ---------------------------------------------------------------------------------------------------

TEXTS = [
    "def f(self, x):\n    return self.x + x  # déjà vu\n\n",
    "日本語 🐍 naïve 12345 1234567890 don't WE'LL   spaces\t\ttabs\r\n",
    "e\u0301 \u1e9b\u0323 ﬁ <|endoftext|> [PAD7] ",
    " leading",
]


def split_by(pattern: str, *, trim: bool) -> dict[str, Any]:
    """A part of a tokenizer.json, as those of published models have it."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, by_bytes]}


GPT2 = {
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
}  # fmt: skip
QWEN2 = {"pre_tokenizer": split_by(PRETOKENIZE_REGEX, trim=False), "normalizer": {"type": "NFC"}}
LLAMA3_SPLIT = {"pre_tokenizer": split_by(GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"], trim=True)}


def tokenizer_with(directory: Path, parts: dict[str, Any], added: dict[str, bool]) -> Path:
    """Writes the target's tokenizer with other parts, and with tokens added: whether each is special."""
    directory.mkdir()
    whole = json.loads((TARGET / "tokenizer.json").read_text()) | parts
    plain = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    if added:  # as in published models, none of whose tokens is both added and part of the vocabulary
        whole["added_tokens"] = []
    for index, (content, special) in enumerate(added.items()):
        whole["added_tokens"].append({"id": 4096 + index, "content": content, **plain, "special": special})
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    end = next(iter(added), "<|endoftext|>")
    # The class of Qwen's models builds its tokenizer of the tokens and merges in the tokenizer.json.
    name = "Qwen2Tokenizer" if parts is QWEN2 else "PreTrainedTokenizerFast"
    roles = {"tokenizer_class": name, "eos_token": end, "pad_token": end, "unk_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(roles))
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2" if parts is QWEN2 else "llama"}))
    return directory


def written_with(
    path: Path, directory: Path, pre: str, change: Callable[[gguf.GGUFWriter], None] | None = None
) -> GgufFile:
    config = LlamaConfig(**SIZES | {"vocab_size": 4110})
    weights = made(config).state_dict()
    return GgufFile.open(write_gguf(path, config, weights, tokenizer=directory, pre=pre, change=change))


@pytest.mark.parametrize("added", [{}, {"<|im_end|>": True, "<think>": False, "<|pad|>": True}])
@pytest.mark.parametrize(("pre", "parts"), [("gpt-2", GPT2), ("qwen2", QWEN2), ("llama-bpe", LLAMA3_SPLIT)])
def test_a_tokenizer_built_of_the_tokens(
    pre: str, parts: dict[str, Any], added: dict[str, bool], tmp_path: Path
) -> None:
    if pre == "llama-bpe":
        model = json.loads((TARGET / "tokenizer.json").read_text())["model"]
        parts = parts | {"model": model | {"ignore_merges": True}}
    directory = tokenizer_with(tmp_path / "before", parts, added)
    before = Tokenizer.load(str(directory))
    after = Tokenizer(written_with(tmp_path / "model.gguf", directory, pre).tokenizer())
    assert after.sha256 == before.sha256
    texts = [*TEXTS, "a<|im_end|> b<think>c"]
    assert [after.encode(text) for text in texts] == [before.encode(text) for text in texts]
    ids = before.encode("a<|im_end|> b<think>c")
    for skip in (True, False):
        assert after.decode(ids, skip_special_tokens=skip) == before.decode(ids, skip_special_tokens=skip)


def test_tokens_that_begin_and_end_a_text_are_added(tmp_path: Path) -> None:
    directory = tokenizer_with(tmp_path / "before", GPT2, {"<s>": True})  # which the roles call `eos`

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    plain = Tokenizer(written_with(tmp_path / "plain.gguf", directory, "gpt-2").tokenizer()).encode("def f")
    after = Tokenizer(written_with(tmp_path / "model.gguf", directory, "gpt-2", change).tokenizer())
    assert after.encode("def f") == [0, *plain, 4096]
    assert after.encode("def f", add_special_tokens=False) == plain


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smollm", ["def", "Ġx", "1", "2", "Ġ=", "Ġ", "3", "4", "5", "6", "Ċ"]),
        ("llama-bpe", ["def", "Ġx", "12", "Ġ=", "Ġ", "345", "6", "Ċ"]),
        ("qwen35", ["def", "Ġx", "1", "2", "Ġ=", "Ġ", "3", "4", "5", "6", "Ċ"]),
        ("gpt-4o", ["def", "Ġx", "12", "Ġ=", "Ġ", "345", "6", "Ċ"]),
        ("deepseek-v3", ["def", "Ġx", "12", "Ġ=", "Ġ", "345", "6", "Ċ"]),
        ("falcon", ["def", "Ġx", "12", "Ġ", "=", "Ġ", "345", "6", "Ċ"]),
    ],
)
def test_splittings(name: str, parts: list[str]) -> None:
    assert split(name, "def x12 = 3456\n") == parts


@pytest.mark.parametrize("name", SPLITTINGS)
def test_a_splitting_loses_nothing(name: str) -> None:
    text = "  Don't: naïve_CamelCase 1234.5 日本語 한국어 🙂\r\n\n\tx=[1, 2];  "
    found = "".join(split(name, text))
    assert ByteLevelDecoder().decode([found]) == text


def split(name: str, text: str) -> list[str]:
    """The parts of a text, in the alphabet of bytes."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "model": empty, "pre_tokenizer": SPLITTINGS[name].pre_tokenizer()}
    pre_tokenizer = TokenizersTokenizer.from_str(json.dumps(whole)).pre_tokenizer
    return [part for part, _ in pre_tokenizer.pre_tokenize_str(text)]


def test_a_splitting_that_is_not_known_is_refused(tmp_path: Path) -> None:
    file = GgufFile.open(write_checkpoint_as_gguf(tmp_path / "model.gguf", TARGET, pre="mystery", whole=False))
    with pytest.raises(ModelLoadError, match=r"metadata tokenizer\.ggml\.pre: splitting 'mystery' is not supported"):
        file.tokenizer()


def test_a_file_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"metadata tokenizer\.ggml\.model: is missing"):
        written(tmp_path, CONFIGS["llama"]).tokenizer()


def test_pieces_with_scores(tmp_path: Path) -> None:
    """SentencePiece's tokenizers, as of Llama 2, have scores instead of merges."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    pieces += ["▁", "d", "e", "f", "x", "(", ")", ":", "▁d", "ef", "▁def", "▁x"]
    types = [2, 3, 3, *[6] * 256, *[1] * 12]

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores([0.0] * 259 + [-float(index) for index in range(20, 8, -1)])
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    config = LlamaConfig(**SIZES | {"vocab_size": len(pieces)})
    path = write_gguf(tmp_path / "model.gguf", config, made(config).state_dict(), change=change)
    tokenizer = Tokenizer(GgufFile.open(path).tokenizer())
    ids = tokenizer.encode("def x(é):</s>")
    names = [pieces[token] for token in ids]
    assert names == ["<s>", "▁def", "▁x", "(", "<0xC3>", "<0xA9>", ")", ":", "</s>"]
    assert tokenizer.decode(ids) == "def x(é):"
    # As in SentencePiece and llama.cpp, every text gets a space before it, one that begins with spaces, too.
    for text, expected in (
        ("  def", ["▁", "▁", "▁def"]),
        (" def", ["▁", "▁def"]),
        (" ", ["▁", "▁"]),
        ("def</s>def", ["▁def", "</s>", "▁def"]),
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [pieces[token] for token in ids] == expected
        if "</s>" not in text:
            assert tokenizer.decode(ids) == text


def test_the_bundled_target_with_its_tokenizer(tmp_path: Path) -> None:
    path = write_checkpoint_as_gguf(tmp_path / "target.gguf", TARGET, "Q8_0")
    file = GgufFile.open(path)
    before, after = Tokenizer.load(str(TARGET)), Tokenizer(file.tokenizer())
    assert after.sha256 == before.sha256
    assert [after.encode(text) for text in TEXTS] == [before.encode(text) for text in TEXTS]
    messages = [{"role": "user", "content": "hi"}]
    assert after.render_chat(messages) == before.render_chat(messages)
    config = json.loads((TARGET / "config.json").read_text())
    made_config = file.config().to_dict()
    assert {key: made_config[key] for key in config.keys() - {"dtype"}} == {
        key: config[key] for key in config.keys() - {"dtype"}
    }
    for name, weight in load_file(TARGET / "model.safetensors").items():
        error = (file.tensors[name].dequantised() - weight.float()).abs().max() / weight.float().abs().max()
        assert error < 0.005
