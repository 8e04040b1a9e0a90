"""Linear layers with weights in blocks: their values, and models that use them."""

import copy

import pytest
import torch

from draftwire_core.engine.device.choices import QuantisedWeights
from draftwire_core.engine.kernels.library import LIBRARY, Kernels, available_kernels, use_kernels
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.linear.block_linear import BlockLinear
from draftwire_core.engine.model.linear.block_weight import from_blocks, in_blocks
from draftwire_core.engine.model.linear.row_exact import RowExactLinear
from draftwire_core.engine.model.numerics import Numerics, model_numerics
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from tests.harness.engine.engines import check_against_plain, random_tokens, run_in_parts, tiny_model, walk

TYPES: list[QuantisedWeights] = ["q8_0", "q4_0"]
SIZES = {"hidden_size": 128, "intermediate_size": 320, "head_dim": 32}
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


def quantised(name: str = "Llama", kind: QuantisedWeights = "q8_0", **sizes: object) -> PackedModel:
    return PackedModel(tiny_model(name, torch.bfloat16, **(SIZES | sizes)), 1000, weights=kind)


@pytest.mark.parametrize(("kind", "error"), [("q8_0", 1 / 254), ("q4_0", 1 / 8)])
def test_values_are_near(kind: QuantisedWeights, error: float) -> None:
    weight = torch.randn(70, 96, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = from_blocks(in_blocks(weight, kind), kind).float()
    most = weight.float().unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1)
    assert ((found - weight.float()).abs() <= most * (error + 2**-8)).all()


def check_model(name: str, kind: QuantisedWeights, length: int, prompts: list[int]) -> None:
    """A model says what its quantised weights say."""
    sizes = {} if name == "GPT2" else SIZES
    model = tiny_model(name, torch.bfloat16, **sizes)
    ours = PackedModel(copy.deepcopy(model), 1000, weights=kind)
    assert [each for each in ours.model.modules() if isinstance(each, BlockLinear)]
    assert run_self_test(ours).bit_exact
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(from_blocks(in_blocks(module.weight.data, kind), kind))
        elif type(module).__name__ == "Conv1D":
            weight = from_blocks(in_blocks(module.weight.data.t().contiguous(), kind), kind)
            module.weight = torch.nn.Parameter(weight.t().contiguous())
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    # Rounding the rows moves logits; with other weights they differ by more than 2.
    assert check_against_plain(model, walk(ours, texts, prompts)) < 0.7


@needs_library
@pytest.mark.parametrize(("name", "kind"), [("Qwen2", "q8_0"), ("Qwen3", "q4_0"), ("GPT2", "q8_0")])
def test_a_model_says_what_its_quantised_weights_say(name: str, kind: QuantisedWeights) -> None:
    check_model(name, kind, 20, [12, 5])


@needs_library
def test_one_call_gives_the_bits_of_its_parts() -> None:
    ours, texts = quantised("Qwen3", "q4_0"), [random_tokens(140, seed=1), random_tokens(25, seed=2)]
    whole = walk(ours, texts, [100, 5])
    assert all(layer.compiled is not None for layer in ours.model.model.layers)
    run_in_parts(ours)
    in_parts = walk(ours, texts, [100, 5])
    assert all(torch.equal(whole[prefix], in_parts[prefix]) for prefix in whole)


@needs_library
@pytest.mark.parametrize("kind", TYPES)
def test_all_kernels_have_the_same_numerics(kind: QuantisedWeights) -> None:

    def taken(kernels: Kernels) -> Numerics:
        use_kernels(kernels)
        return model_numerics(quantised(kind=kind))

    try:
        found = {taken(each) for each in available_kernels() if each != "torch"}
    finally:
        use_kernels("auto")
    assert len(found) == 1


def test_without_the_library_values_are_the_same() -> None:
    texts = [random_tokens(40, seed=1), random_tokens(40, seed=2)]
    try:
        use_kernels("torch")
        model = quantised(kind="q8_0")
        layers = [each for each in model.model.modules() if isinstance(each, BlockLinear | RowExactLinear)]
        assert {type(each) for each in layers} == {RowExactLinear}
        plain = walk(model, texts, [20, 5])
    finally:
        use_kernels("auto")
    for prefix, logits in walk(quantised(kind="q8_0"), texts, [20, 5]).items():
        assert (logits - plain[prefix]).float().std() < 0.2 * plain[prefix].float().std()


def test_it_is_another_model() -> None:
    model = tiny_model("Llama", torch.bfloat16)
    found = [PackedModel(copy.deepcopy(model), 100, weights=each) for each in ("checkpoint", *TYPES)]
    assert [each.weight_type for each in found] == ["bfloat16", *TYPES]
    assert len({each.fingerprint for each in found}) == 3


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"weights q8_0 need bfloat16 on a CPU, not float32 on cpu"):
        PackedModel(tiny_model("Llama"), 100, weights="q8_0")


def test_layers_of_other_sizes_keep_their_weights() -> None:
    """Blocks have 32 inputs."""
    layer = quantised(intermediate_size=72).model.model.layers[0]
    mlp = layer.library_layer.mlp if LIBRARY.exists() else layer.mlp  # attention alone is fused
    assert isinstance(mlp.down_proj, RowExactLinear)
    assert isinstance(mlp.up_proj, BlockLinear) or not LIBRARY.exists()


@needs_library
@pytest.mark.slow
class TestAll:
    """All architectures with both kinds of weights, in longer walks."""

    @pytest.mark.parametrize("kind", TYPES)
    @pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Gemma2", "GPT2"])
    def test_a_model_says_what_its_quantised_weights_say(self, name: str, kind: QuantisedWeights) -> None:
        check_model(name, kind, 40, [20, 5])
