"""The hybrid pair is a hybrid and its draft, small, and as good as their card says; how its recipe starts."""

import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from tests.harness.checkout import MODELS  # noqa: E402

KINDS = ["linear_attention"] * 3 + ["full_attention"]
NAMES = ("hybrid-target", "hybrid-draft")


@pytest.fixture(scope="module")
def models() -> dict[str, "transformers.PreTrainedModel"]:
    load = transformers.AutoModelForCausalLM.from_pretrained
    return {name: load(MODELS / name, dtype=torch.float32) for name in (*NAMES, "draft", "draft-untrained")}


@pytest.fixture(scope="module")
def texts() -> list["torch.Tensor"]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "hybrid-target")
    lines = (MODELS / "prompts.jsonl").read_text().splitlines()[::16]
    return [torch.tensor([[0, *tokenizer(json.loads(line)["text"]).input_ids]]) for line in lines]


def test_it_is_a_hybrid_with_the_bundled_tokenizer(models: dict[str, "transformers.PreTrainedModel"]) -> None:
    target = models["hybrid-target"]
    assert target.config.layer_types == KINDS and target.config.model_type == "qwen3_5_text"
    assert 7e6 < target.num_parameters() < 9e6
    assert models["hybrid-draft"].num_parameters() == models["draft"].num_parameters()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(MODELS / directory / name).read_bytes() for directory in ("target", *NAMES)}) == 1
    for name in NAMES:
        stored = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype="auto")
        assert stored.dtype == torch.bfloat16
        assert all(bool(torch.isfinite(parameter).all()) for parameter in stored.parameters())


@torch.inference_mode()
def test_it_predicts_unseen_python(
    models: dict[str, "transformers.PreTrainedModel"], texts: list["torch.Tensor"]
) -> None:
    nats = dict.fromkeys(NAMES, 0.0)
    same = dict.fromkeys(models, 0)
    for ids in texts:
        outputs = {name: model(ids).logits for name, model in models.items()}
        choices = outputs["hybrid-target"].argmax(-1)
        for name in models:
            same[name] += int((outputs[name].argmax(-1) == choices).sum())
        for name in NAMES:
            nats[name] += float(torch.nn.functional.cross_entropy(outputs[name][0, :-1], ids[0, 1:], reduction="sum"))
    positions = sum(ids.shape[1] for ids in texts)
    assert all(each / positions < 3.6 for each in nats.values())
    # It follows the hybrid more closely than the draft that was made for the other target.
    assert same["hybrid-draft"] / positions > 0.55
    assert same["hybrid-draft"] > same["draft"]
    assert same["draft-untrained"] / positions < 0.05


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The recipe, whose modules import each other as scripts of one folder do."""
    monkeypatch.syspath_prepend(str(MODELS))
    before = set(sys.modules)
    yield importlib.import_module("hybrid")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(MODELS)):
            del sys.modules[name]


@torch.inference_mode()
def test_the_recipe_starts_from_the_bundled_target(hybrid: ModuleType) -> None:
    weights = load_file(MODELS / "target" / "model.safetensors")
    model = hybrid.transplanted(weights)
    exported = hybrid.exported(model)
    assert "lm_head.weight" not in exported
    assert exported.keys() == load_file(MODELS / "hybrid-target" / "model.safetensors").keys()
    assert torch.equal(exported["model.embed_tokens.weight"], weights["model.embed_tokens.weight"].float())
    # Delta nets write nothing yet: what is left of a layer is its feed-forward block.
    ids = torch.tensor([[0, 17, 100, 2000, 5]])
    states = model.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    mlp, norm = model.model.layers[0].mlp, model.model.layers[0].post_attention_layernorm
    torch.testing.assert_close(states[1], states[0] + mlp(norm(states[0])))
    assert model(ids).shape == (1, 5, 4096)
