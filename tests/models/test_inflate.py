"""A grown model computes the same as the small one."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftwire_core.engine.drafters.medusa_heads import MedusaHeads, load_heads  # noqa: E402
from models.hybrid_growth import HybridShape, choose_hybrid  # noqa: E402
from models.inflate import Shape, choose_shape, inflate, inflate_heads  # noqa: E402

MODELS = Path(__file__).parents[2] / "models"


def tiny_model(directory: Path, dtype: "torch.dtype" = torch.float32, **changes: object) -> Path:
    """Writes a random Llama with grouped heads to `directory`."""
    sizes: dict[str, object] = {
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "tie_word_embeddings": True,
        "rms_norm_eps": 1e-3, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | changes)))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    model.to(dtype).save_pretrained(directory)
    return directory


def tiny_hybrid(directory: Path, dtype: "torch.dtype" = torch.float32, **changes: object) -> Path:
    """Writes a random Qwen3.5 with grouped heads to `directory`."""
    sizes: dict[str, object] = {
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "max_position_embeddings": 64,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(3)
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**(sizes | changes)))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
        elif name.endswith(("A_log", "dt_bias")):
            torch.nn.init.uniform_(parameter, -2, 0)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    model.to(dtype).save_pretrained(directory)
    return directory


def logits_of(directory: Path, ids: "torch.Tensor", dtype: "torch.dtype" = torch.float32) -> "torch.Tensor":
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    with torch.inference_mode():
        return model(ids).logits


IDS = torch.arange(40).reshape(2, 20) * 7 % 97


GROWN: list[tuple[int, int | None]] = [(60_000, None), (700_000, None), (700_000, 3), (2_000_000, 2)]
GROWN_HYBRIDS: list[tuple[int, int | None]] = [(200_000, None), (2_000_000, None), (3_000_000, 8)]
"""Numbers of parameters and layers."""
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("parameters", "layers", "tied"), [(*size, place % 2 == 0) for place, size in enumerate(GROWN)]
)
def test_the_grown_model_has_the_same_logits(tmp_path: Path, parameters: int, layers: int | None, tied: bool) -> None:
    check_grown(tmp_path, parameters, layers, tied)


def check_grown(tmp_path: Path, parameters: int, layers: int | None, tied: bool) -> None:
    small = tiny_model(tmp_path / "small", tie_word_embeddings=tied)
    inflate(small, tmp_path / "large", parameters, layers=layers)
    torch.testing.assert_close(logits_of(tmp_path / "large", IDS), logits_of(small, IDS), atol=1e-4, rtol=1e-4)


def test_the_rescaling_is_exact_in_bfloat16(tmp_path: Path) -> None:
    small = tiny_model(tmp_path / "small", torch.bfloat16)
    inflate(small, tmp_path / "large", 700_000)
    torch.testing.assert_close(logits_of(tmp_path / "large", IDS), logits_of(small, IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("parameters", "layers", "tied", "dtype"),
    [(*size, place % 2 == 0, DTYPES[place % 2]) for place, size in enumerate(GROWN_HYBRIDS)],
)
def test_a_grown_hybrid_has_the_same_logits(
    tmp_path: Path, parameters: int, layers: int | None, tied: bool, dtype: "torch.dtype"
) -> None:
    check_grown_hybrid(tmp_path, parameters, layers, tied, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
class TestEveryCombination:
    @pytest.mark.parametrize(("parameters", "layers"), GROWN)
    def test_the_grown_model_has_the_same_logits(
        self, tmp_path: Path, parameters: int, layers: int | None, tied: bool
    ) -> None:
        check_grown(tmp_path, parameters, layers, tied)

    @pytest.mark.parametrize(("parameters", "layers"), GROWN_HYBRIDS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_grown_hybrid_has_the_same_logits(
        self, tmp_path: Path, parameters: int, layers: int | None, tied: bool, dtype: "torch.dtype"
    ) -> None:
        check_grown_hybrid(tmp_path, parameters, layers, tied, dtype)


def check_grown_hybrid(tmp_path: Path, parameters: int, layers: int | None, tied: bool, dtype: "torch.dtype") -> None:
    small = tiny_hybrid(tmp_path / "small", dtype, tie_word_embeddings=tied)
    shape = inflate(small, tmp_path / "large", parameters, layers=layers)
    assert isinstance(shape, HybridShape) and shape.layers % 4 == 0
    grown = transformers.AutoConfig.from_pretrained(tmp_path / "large")
    assert grown.layer_types == [*["linear_attention"] * 3, "full_attention"] * (shape.layers // 4)
    # Computed in float32: all factors are powers of two, which bfloat16 weights hold exactly.
    torch.testing.assert_close(logits_of(tmp_path / "large", IDS), logits_of(small, IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("parameters", [150_000, 700_000, 5_000_000])
def test_a_grown_hybrid_has_the_size_asked_for(tmp_path: Path, parameters: int) -> None:
    shape = inflate(tiny_hybrid(tmp_path / "small"), tmp_path / "large", parameters)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "large")
    assert model.num_parameters() == shape.parameters(embeddings=2 * 97)
    assert model.num_parameters() == pytest.approx(parameters, rel=0.1)


def test_the_layers_of_a_hybrid_repeat_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no multiple of 4"):
        inflate(tiny_hybrid(tmp_path / "small"), tmp_path / "large", 700_000, layers=6)
    with pytest.raises(ValueError, match="try more"):
        inflate(tmp_path / "small", tmp_path / "large", 1000)


def test_a_large_hybrid_is_wide_as_well() -> None:
    config = transformers.AutoConfig.from_pretrained(MODELS / "hybrid-target")
    for parameters, layers in ((4e8, 12), (1.5e9, 24)):
        shape = choose_hybrid(HybridShape.of(config), int(parameters), 4096)
        assert shape.hidden == 1536 and shape.layers <= layers and shape.mlp % 256 == 0
        assert shape.parameters(2 * 4096) == pytest.approx(parameters, rel=0.03)


@pytest.mark.parametrize("parameters", [100_000, 700_000, 5_000_000])
def test_the_size_is_the_one_asked_for(tmp_path: Path, parameters: int) -> None:
    shape = inflate(tiny_model(tmp_path / "small"), tmp_path / "large", parameters)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "large")
    assert model.num_parameters() == shape.parameters(embeddings=97)
    assert model.num_parameters() == pytest.approx(parameters, rel=0.1)


def test_a_large_model_is_wide_rather_than_only_deep() -> None:
    target = Shape(hidden=384, layers=6, heads=6, kv_heads=2, head_dim=64, mlp=704)
    for parameters, fewest, most in ((3e8, 8, 16), (4e8, 12, 24), (1e9, 24, 48)):
        shape = choose_shape(target, int(parameters), embeddings=4096)
        assert shape.hidden == 1536 and fewest <= shape.layers <= most
        assert shape.mlp % 256 == 0  # for weights in superblocks
        assert shape.parameters(4096) == pytest.approx(parameters, rel=0.03)


def test_the_weights_that_do_not_matter_are_real_numbers_and_seeded(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    small = tiny_model(tmp_path / "small")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        inflate(small, tmp_path / name, 700_000, seed=seed)
    bytes_of = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert bytes_of["a"] == bytes_of["b"] != bytes_of["c"]
    for name, value in load_file(tmp_path / "a" / "model.safetensors").items():
        assert torch.isfinite(value).all(), name
        assert not ((value != 0) & (value.abs() < torch.finfo(value.dtype).tiny)).any(), name
    up = load_file(tmp_path / "a" / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    assert (up != 0).float().mean() > 0.99


def test_a_size_below_the_models_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fewer than"):
        inflate(tiny_model(tmp_path / "small"), tmp_path / "large", 1000)


def test_a_model_with_biases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="biases"):
        inflate(tiny_model(tmp_path / "small", attention_bias=True), tmp_path / "large", 700_000)


@pytest.mark.parametrize("name", ["target", "draft", "hybrid-target"])
def test_the_bundled_models_can_be_grown(tmp_path: Path, name: str) -> None:
    inflate(MODELS / name, tmp_path, 60_000_000 if name == "hybrid-target" else 24_000_000)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("def read(self, path):\n    with open(path) as file:\n", return_tensors="pt").input_ids
    small, large = logits_of(MODELS / name, ids), logits_of(tmp_path, ids)
    torch.testing.assert_close(large, small, atol=1e-3, rtol=1e-4)
    assert (large.argmax(-1) == small.argmax(-1)).all()


def test_grown_heads_guess_what_they_did(tmp_path: Path) -> None:
    torch.manual_seed(5)
    heads = MedusaHeads(heads=2, layers=1, hidden_size=48, vocab_size=97)
    heads.save(tmp_path / "heads", "small", torch.float32)
    inflate_heads(tmp_path / "heads", tmp_path / "grown", hidden=192)
    grown = load_heads(str(tmp_path / "grown"), torch.float32)
    states = torch.randn(5, 48)
    wide = torch.cat([states, torch.zeros(5, 144)], dim=1)
    with torch.inference_mode():
        torch.testing.assert_close(grown(wide, 2), heads(states, 2), atol=1e-4, rtol=1e-4)
