"""The bundled models are complete, small, and as good as their card says."""

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODELS = Path(__file__).parents[2] / "models"
DIRECTORIES = ("target", "draft", "draft-early", "draft-untrained")
# Written for this test, so it cannot have been in the training text.
SNIPPET = '''\
class Ledger:
    """Keeps the balance of every account."""

    def __init__(self, opening=None):
        self._balances = dict(opening or {})

    def transfer(self, source, destination, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if self._balances.get(source, 0) < amount:
            raise ValueError(f"not enough funds in {source!r}")
        self._balances[source] -= amount
        self._balances[destination] = self._balances.get(destination, 0) + amount

    def balance(self, account):
        return self._balances.get(account, 0)
'''


@pytest.fixture(scope="module")
def models() -> dict[str, "transformers.PreTrainedModel"]:
    load = transformers.AutoModelForCausalLM.from_pretrained
    return {name: load(MODELS / name, dtype=torch.float32) for name in DIRECTORIES}


@pytest.fixture(scope="module")
def tokenizer() -> "transformers.PreTrainedTokenizerBase":
    return transformers.AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, str]]:
    return [json.loads(line) for line in (MODELS / "prompts.jsonl").read_text().splitlines()]


def test_all_models_share_the_tokenizer_byte_for_byte() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(MODELS / directory / name).read_bytes() for directory in DIRECTORIES}) == 1


def test_the_folder_stays_under_45_megabytes() -> None:
    files = [path for path in MODELS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 45e6


def test_sizes_and_shapes(models: dict[str, "transformers.PreTrainedModel"]) -> None:
    assert 8e6 < models["target"].num_parameters() < 12e6
    assert len({models[name].num_parameters() for name in DIRECTORIES[1:]}) == 1
    assert 0.7e6 < models["draft"].num_parameters() < 1.3e6
    for model in models.values():
        config = model.config
        assert config.model_type == "llama" and config.dtype is not None
        assert config.tie_word_embeddings and config.max_position_embeddings == 2048
        assert config.head_dim % 16 == config.hidden_size % 32 == config.intermediate_size % 32 == 0
        assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_weights_are_committed_in_bfloat16() -> None:
    for name in DIRECTORIES:
        model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype="auto")
        assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\n\t x", "def f(self, x):\n    return x  # naïve, 日本語 🐍\n", "a\r\nb", "x" * 500, "\x00\x7f\u2028"],
)
def test_any_text_comes_back_from_the_tokenizer(tokenizer: "transformers.PreTrainedTokenizerBase", text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_special_tokens(tokenizer: "transformers.PreTrainedTokenizerBase", models: dict[str, "object"]) -> None:
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer("").input_ids == []
    assert {model.config.eos_token_id for model in models.values()} == {tokenizer.eos_token_id}  # type: ignore[attr-defined]
    assert {model.config.vocab_size for model in models.values()} == {len(tokenizer)}  # type: ignore[attr-defined]


def test_prompts_are_held_out_and_different(
    tokenizer: "transformers.PreTrainedTokenizerBase", prompts: list[dict[str, str]]
) -> None:
    held_out = set((MODELS / "held_out.txt").read_text().splitlines())
    assert len(prompts) >= 120
    for key in ("id", "text", "source"):
        assert len({prompt[key] for prompt in prompts}) == len(prompts)
    assert all(prompt["source"] in held_out for prompt in prompts)
    assert all(64 <= len(tokenizer(prompt["text"]).input_ids) <= 200 for prompt in prompts)


def test_the_target_predicts_unseen_python(
    tokenizer: "transformers.PreTrainedTokenizerBase", models: dict[str, "transformers.PreTrainedModel"]
) -> None:
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(SNIPPET).input_ids]])
    bits = {}
    for name, model in models.items():
        with torch.inference_mode():
            nats = float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        bits[name] = nats / math.log(2) / len(SNIPPET.encode())
    assert bits["target"] < 1.6
    # On a text this short, target and draft may swap ranks; models/figures.json ranks them on a long one.
    assert max(bits["target"], bits["draft"]) < bits["draft-early"] - 0.1 < bits["draft-untrained"] - 1


def test_the_drafts_agree_with_the_target_as_often_as_their_names_promise(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    models: dict[str, "transformers.PreTrainedModel"],
    prompts: list[dict[str, str]],
) -> None:
    same = dict.fromkeys(DIRECTORIES, 0)
    positions = 0
    for prompt in prompts[::16]:
        ids = torch.tensor([tokenizer(prompt["text"]).input_ids])
        with torch.inference_mode():
            choices = {name: model(ids).logits.argmax(-1) for name, model in models.items()}
        positions += ids.shape[1]
        for name in DIRECTORIES:
            same[name] += int((choices[name] == choices["target"]).sum())
    agreement = {name: count / positions for name, count in same.items()}
    assert agreement["draft"] >= 0.68  # 0.72 when it was made
    assert agreement["draft"] > agreement["draft-early"] + 0.05
    assert agreement["draft-early"] > agreement["draft-untrained"] + 0.2
    assert agreement["draft-untrained"] < 0.05


def test_the_draft_with_another_tokenizer_is_small_and_predicts_unseen_python(
    models: dict[str, "transformers.PreTrainedModel"],
) -> None:
    other = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "draft-other", dtype="auto")
    vocabulary = transformers.AutoTokenizer.from_pretrained(MODELS / "draft-other")
    assert (other.dtype, other.config.eos_token_id) == (torch.bfloat16, vocabulary.eos_token_id)
    assert other.config.vocab_size == len(vocabulary) != models["target"].config.vocab_size
    assert sum(path.stat().st_size for path in (MODELS / "draft-other").iterdir()) < 3e6
    ids = torch.tensor([[vocabulary.eos_token_id, *vocabulary(SNIPPET).input_ids]])
    with torch.inference_mode():
        nats = float(other.float()(ids, labels=ids).loss) * (ids.shape[1] - 1)
    assert nats / math.log(2) / len(SNIPPET.encode()) < 1.9
