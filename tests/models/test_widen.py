"""A widened model computes the same as the narrow one."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402

from draftwire_core.engine.text.tokenizer import Tokenizer  # noqa: E402
from models.widen import choose_width, widen, write_widened  # noqa: E402
from tests.harness.checkout import MODELS  # noqa: E402
from tests.harness.models.gguf_model import write_gguf  # noqa: E402

SIZES = {
    "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
GEMMA = transformers.Gemma3TextConfig(
    **SIZES,
    query_pre_attn_scalar=16,
    sliding_window=8,
    hidden_activation="gelu_pytorch_tanh",
)
LLAMA = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
IDS = torch.arange(40).reshape(2, 20) * 7 % 97


def tiny(config: "transformers.PreTrainedConfig") -> "torch.nn.Module":
    """A random model in bfloat16, whose logits are far apart."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.02 if name.endswith("norm.weight") else 0.2)
    return model.eval()


def logits_of(directory: Path) -> "torch.Tensor":
    """The logits in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(params=[GEMMA, LLAMA], ids=["Gemma 3", "Llama"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with a random model and the bundled tokenizer."""
    tiny(request.param).save_pretrained(tmp_path / "small")
    Tokenizer.load(str(MODELS / "target")).save(tmp_path / "small")
    return tmp_path / "small"


def test_outputs_are_the_same(small: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    assert write_widened(small, large, 1_000_000) == 4608
    ours, theirs = logits_of(large), logits_of(small)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)  # the order of sums may be another
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()
    assert transformers.AutoConfig.from_pretrained(large).intermediate_size == 4608


def test_further_dimensions_are_real_zeros(small: Path, tmp_path: Path) -> None:
    write_widened(small, tmp_path / "large", 1_000_000)
    widened = load_file(tmp_path / "large" / "model.safetensors")
    assert {value.dtype for value in widened.values()} == {torch.bfloat16}
    assert sum(value.numel() for value in widened.values()) == pytest.approx(1_000_000, rel=0.05)
    assert (tmp_path / "large" / "model.safetensors").stat().st_size > 2 * 0.95 * 1_000_000
    for layer in range(2):
        gate, up, down = (widened[f"model.layers.{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        assert gate.shape == up.shape == (4608, 32) and down.shape == (32, 4608)
        assert not gate[64:].any() and not up[64:].any() and not down[:, 64:].any()
        assert gate[:64].any() and down[:, :64].any()


@pytest.mark.parametrize("name", ["gelu_pytorch_tanh", "silu", "gelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_further_dimension_adds_nothing_at_all(name: str, dtype: "torch.dtype") -> None:
    zero = torch.zeros(1, dtype=dtype)
    assert (ACT2FN[name](zero) * zero * zero).item() == 0.0


def test_the_tokenizer_goes_along(small: Path, tmp_path: Path) -> None:
    write_widened(small, tmp_path / "large", 1_000_000)
    assert Tokenizer.load(str(tmp_path / "large")).sha256 == Tokenizer.load(str(small)).sha256


def test_a_gguf_file_is_widened(tmp_path: Path) -> None:
    model = tiny(GEMMA)
    model.save_pretrained(tmp_path / "small")
    file = write_gguf(tmp_path / "small.gguf", GEMMA, model.state_dict(), "BF16", tokenizer=MODELS / "target")
    write_widened(file, tmp_path / "large", 1_000_000)
    torch.testing.assert_close(logits_of(tmp_path / "large"), logits_of(tmp_path / "small"), atol=1e-2, rtol=1e-2)
    text = "def read(self, path):"
    assert Tokenizer.load(str(tmp_path / "large")).encode(text) == Tokenizer.load(str(file)).encode(text)


def test_what_cannot_be_widened_is_refused() -> None:
    weights = dict(tiny(GEMMA).state_dict())
    with pytest.raises(ValueError, match="fewer than"):
        choose_width(GEMMA, weights, 1000)
    weights["model.layers.0.mlp.up_proj.bias"] = torch.zeros(64)
    with pytest.raises(ValueError, match="without biases"):
        choose_width(GEMMA, weights, 1_000_000)


def test_a_model_of_its_own_size_stays_as_it_is() -> None:
    weights = {name: value for name, value in tiny(LLAMA).state_dict().items() if name != "lm_head.weight"}
    width = choose_width(LLAMA, weights, sum(value.numel() for value in weights.values()))
    assert width == 64
    assert all(torch.equal(value, weights[name]) for name, value in widen(weights, width).items())
