"""The choice of a drafter, over configurations of published models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.suggesting.candidate import DrafterCandidate, Kind
from draftwire_core.suggesting.known_drafters import KnownDrafter, known_drafters
from draftwire_core.suggesting.model_names import gguf_names, same_model
from draftwire_core.suggesting.suggestion import Suggestion, suggest
from draftwire_core.suggesting.target_facts import TargetFacts, facts_of
from tests.harness.models.hollow_models import hollow_checkpoint, hollow_gguf

MB = 1_000_000

LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
QWEN = {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151936}
QWEN_MTP = {
    "model_type": "qwen3_5",
    "text_config": {"num_hidden_layers": 32, "hidden_size": 2560, "vocab_size": 248320, "mtp_num_hidden_layers": 1},
}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "vocab_size": 262208},
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
}
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 32768}
LARGE = {"model.embed_tokens.weight": 1000 * MB, "lm_head.weight": 1000 * MB, "model.layers.0.mlp": 14000 * MB}


def chosen(suggestion: Suggestion) -> DrafterCandidate | None:
    return next(iter(suggestion.usable), None)


def suggested(place: Path, config: dict[str, Any], tensors: dict[str, int] | None = None, **options: Any) -> Suggestion:
    return suggest(facts_of(str(hollow_checkpoint(place / "target", config, tensors or LARGE))), **options)


@pytest.mark.parametrize(
    ("config", "kind", "name"),
    [
        (LLAMA, Kind.EAGLE3, "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"),
        (QWEN, Kind.EAGLE3, "RedHatAI/Qwen3-8B-speculator.eagle3"),
        ({**QWEN, "hidden_size": 5120, "num_hidden_layers": 40}, Kind.MODEL, "Qwen/Qwen3-0.6B"),
        (GEMMA, Kind.MODEL, "google/gemma-3-270m-it"),
        (MISTRAL, Kind.UNIVERSAL, "SmolLM2-135M-Instruct"),
        ({"model_type": "never_seen", "vocab_size": 50000}, Kind.UNIVERSAL, "SmolLM2-135M-Instruct"),
    ],
)
def test_directories_of_published_sizes(tmp_path: Path, config: dict[str, Any], kind: Kind, name: str) -> None:
    found = suggested(tmp_path, config)
    first = chosen(found)
    assert first is not None
    assert (first.kind, first.name) == (kind, name)
    assert found.candidates[-1].kind is Kind.LOOKUP
    assert first.gain is not None
    assert first.gain > 1.0


def test_only_the_experts_in_use_are_read(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": 1000 * MB,
        "lm_head.weight": 1000 * MB,
        "model.layers.0.mlp.experts.gate_up_proj_blocks": 8000 * MB,
        "model.layers.0.self_attn.q_proj.weight": 500 * MB,
    }
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", OSS, tensors)))
    assert facts.bytes_per_token == 2500 * MB
    first = chosen(suggest(facts))
    assert first is not None
    assert first.name == "RedHatAI/gpt-oss-20b-speculator.eagle3"


@pytest.mark.parametrize("split", [False, True])
def test_a_copy_in_another_format_is_not_counted(split: bool, tmp_path: Path) -> None:
    """As Mistral's repositories have one."""
    place = hollow_checkpoint(tmp_path / "target", MISTRAL, LARGE)
    (place / "consolidated.safetensors").write_bytes((place / "model.safetensors").read_bytes())
    if split:
        (place / "model.safetensors").rename(place / "model-00001-of-00001.safetensors")
        index = {"weight_map": dict.fromkeys(LARGE, "model-00001-of-00001.safetensors")}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert facts_of(str(place)).weight_bytes == 16000 * MB


def test_layers_of_the_checkpoint_come_first(tmp_path: Path) -> None:
    tensors = LARGE | {"mtp.fc.weight": 30 * MB}
    first = chosen(suggested(tmp_path, QWEN_MTP, tensors))
    assert first is not None
    assert (first.kind, first.name, first.fetch_bytes) == (Kind.MTP, "local:mtp", 0)


def test_a_conversion_without_its_layers_has_none(tmp_path: Path) -> None:
    first = chosen(suggested(tmp_path, QWEN_MTP))
    assert first is not None
    assert first.kind is Kind.UNIVERSAL


def test_no_head_is_chosen_on_a_gpu_where_none_was_timed(tmp_path: Path) -> None:
    found = suggested(tmp_path, QWEN, on_gpu=True)
    first = chosen(found)
    assert first is not None
    assert first.name == "Qwen/Qwen3-0.6B"
    assert "drafts if it is named" in found.candidates[0].reason


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, Kind.EAGLE3),
        ({"speculators_model_type": "dflash"}, Kind.DFLASH),
        ({"medusa_num_heads": 3, "medusa_num_layers": 1}, Kind.MEDUSA),
    ],
)
def test_heads_in_the_checkpoints_directory(tmp_path: Path, config: dict[str, Any], kind: Kind) -> None:
    target = hollow_checkpoint(tmp_path / "target", LLAMA, LARGE)
    hollow_checkpoint(target / "head", config, {"fc.weight": 100 * MB})
    hollow_checkpoint(target / "another", {"model_type": "clip"}, {"fc.weight": 100 * MB})
    first = chosen(suggest(facts_of(str(target))))
    assert first is not None
    assert (first.kind, first.source) == (kind, str(target / "head"))


@pytest.mark.parametrize(
    "card",
    [
        "---\nlicense: mit\nbase_model: Qwen/Qwen3-8B\n---\n# A fine-tune\n",
        "---\nbase_model:\n- Qwen/Qwen3-8B\n- other/model\n---\n",
    ],
)
def test_a_fine_tune_is_known_by_its_card(tmp_path: Path, card: str) -> None:
    resized = {**QWEN, "vocab_size": 151940}
    place = hollow_checkpoint(tmp_path / "tuned", resized, LARGE, card)
    first = chosen(suggest(facts_of(str(place))))
    assert first is not None
    assert first.name == "RedHatAI/Qwen3-8B-speculator.eagle3"
    assert "by the target's name" in first.reason


@pytest.mark.parametrize("card", ["", "no front", "---\n: [\n---\n", "---\n- a\n---\n", "---\nbase_model: 7\n---\n"])
def test_a_card_that_says_nothing_does_no_harm(tmp_path: Path, card: str) -> None:
    place = hollow_checkpoint(tmp_path / "target", MISTRAL, LARGE, card)
    assert facts_of(str(place)).names == (str(place),)


def test_a_configuration_names_the_model_that_was_tuned(tmp_path: Path) -> None:
    config = {**LLAMA, "vocab_size": 128264, "_name_or_path": "unsloth/Llama-3.1-8B-Instruct"}
    first = chosen(suggested(tmp_path, config))
    assert first is not None
    assert first.name == "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"


GGUF = [
    ("llama", 32, 4096, 128256, {"general.name": "Meta Llama 3.1 8B Instruct"}, "by the target's name"),
    ("qwen3", 36, 4096, 151936, {"general.name": "a tune"}, "RedHatAI/Qwen3-8B-speculator.eagle3"),
    ("gemma3", 34, 2560, 262144, {"general.name": "Gemma 3 4b It"}, "google/gemma-3-270m-it"),
    ("gpt-oss", 24, 2880, 201088, {}, "RedHatAI/gpt-oss-20b-speculator.eagle3"),
    ("llama", 32, 4096, 32768, {"general.name": "Mistral 7B Instruct v0.3"}, "SmolLM2-135M-Instruct"),
]


@pytest.mark.parametrize(("architecture", "layers", "hidden", "vocabulary", "texts", "told"), GGUF)
def test_gguf_files(
    tmp_path: Path, architecture: str, layers: int, hidden: int, vocabulary: int, texts: dict[str, str], told: str
) -> None:
    numbers = {"block_count": layers, "embedding_length": hidden}
    tensors = {"token_embd.weight": (vocabulary, hidden), "blk.0.ffn_up.weight": (1 << 20, hidden)}
    path = hollow_gguf(tmp_path / "model.gguf", architecture, numbers, tensors, texts)
    facts = facts_of(str(path))
    assert (facts.layers, facts.hidden, facts.vocabulary, facts.gguf) == (layers, hidden, vocabulary, True)
    first = chosen(suggest(facts))
    assert first is not None
    assert told in (first.name, first.reason.partition("found ")[2].partition(";")[0])


def test_a_gguf_file_names_its_base_models() -> None:
    url = "https://huggingface.co/Qwen/Qwen3-8B"
    metadata = {"general.base_model.count": 1, "general.base_model.0.repo_url": url, "general.name": "A tune"}
    assert gguf_names(metadata) == [url, "A tune"]
    assert same_model([url], ["Qwen/Qwen3-8B-GGUF"])


def test_a_target_that_is_too_small_gets_lookup_alone() -> None:
    found = suggest(TargetFacts("small", architecture="llama", vocabulary=4096, bytes_per_token=18 * MB))
    assert found.usable == ()
    assert "too small" in found.candidates[0].reason
    assert found.candidates[-1].fits


@pytest.mark.parametrize(("megabytes", "fits"), [(190, False), (200, True)])
def test_the_universal_drafter_is_tried_from_twice_its_bytes_on(megabytes: int, fits: bool) -> None:
    found = suggest(TargetFacts("t", bytes_per_token=megabytes * MB), table=())
    assert found.candidates[0].fits is fits


def test_a_name_in_the_table_keeps_heads_of_the_same_sizes_away() -> None:
    entry = known_drafters()[0]
    other = KnownDrafter(
        **{each: getattr(entry, each) for each in KnownDrafter.__slots__}
        | {"repository": "lab/other", "names": ("lab/Other-8B",)}
    )
    facts = TargetFacts("t", names=("lab/Other-8B",), architecture="llama", layers=32, hidden=4096, vocabulary=128256)
    assert [each.name for each in suggest(facts, table=(entry, other)).usable] == ["lab/other", "SmolLM2-135M-Instruct"]


def test_the_table_is_whole() -> None:
    table = known_drafters()
    assert len({each.repository for each in table}) == len(table)
    assert all(each.checked and each.licence and each.revision and each.read_megabytes > 0 for each in table)


@pytest.mark.parametrize("damage", ["{", "[]"])
def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path, damage: str) -> None:
    place = hollow_checkpoint(tmp_path / "target", LLAMA, LARGE)
    (place / "config.json").write_text(damage)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        facts_of(str(place))


def test_strange_values_are_unknown(tmp_path: Path) -> None:
    config = {"model_type": 7, "vocab_size": "many", "n_layer": -1, "text_config": [], "architectures": None}
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", config, LARGE)))
    assert (facts.architecture, facts.vocabulary, facts.layers) == ("7", 0, 0)
