"""8-bit integer linear layers: rounding of weights, results of products, and models that use them."""

import copy
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from draftwire_core.engine.kernels.library import BF16_PRODUCTS
from draftwire_core.engine.kernels.products import compiled_product, gemm
from draftwire_core.engine.kernels.products.gemm import CompiledGemmInt8, can_multiply_int8
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.linear.drafter_linear import Int8Linear, LibraryInt8Product, quantised
from draftwire_core.engine.model.linear.row_exact import PackedProduct
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from tests.harness.engine.engines import check_against_plain, random_tokens, tiny_model, walk
from tests.harness.kernels.gemm_kinds import number_of

_BEST = gemm.gemm_kind()
_KINDS = ["baseline", "avx512bf16", "amx"]
"""The kernels; the first has no such products, so the library computes."""
_COMPILED = _KINDS[1:]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    chosen = number_of(request.param)
    for module in (compiled_product, gemm):
        monkeypatch.setattr(module, "gemm_kind", lambda: chosen)
    return chosen


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def integers(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)


class TestRounding:
    def test_each_output_has_its_own_scale(self) -> None:
        weight = random(40, 200) * (10.0 ** torch.arange(-20, 20)[:, None]).to(torch.bfloat16)
        found, scales = quantised(weight)
        assert (found.dtype, scales.dtype, scales.shape) == (torch.int8, torch.bfloat16, (40,))
        # Half a step, and the effect of the scale's own rounding on the largest weights.
        error = (found.double() * scales.double()[:, None] - weight.double()).abs()
        assert (error <= 0.76 * scales.double()[:, None]).all()
        assert (found.abs().amax(1) >= 126).all()

    def test_it_is_symmetric(self) -> None:
        weight = random(8, 64)
        assert torch.equal(quantised(-weight)[0], -quantised(weight)[0])

    def test_an_output_of_zeros_stays_one(self) -> None:
        weight = random(3, 32)
        weight[1] = 0
        found, scales = quantised(weight)
        assert not found[1].any() and scales[1] == 0
        assert found[0].any() and found[2].any()


class TestProduct:
    @pytest.mark.parametrize("kind", _KINDS, indirect=True)
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (50, 96), (64, 64), (317, 512), (70, 1536), (9, 33)])
    @pytest.mark.parametrize("rows", [1, 3, 9, 16, 17, 32, 33, 100])
    def test_it_is_that_of_the_dequantised_weight(
        self, kind: int, rows: int, outputs: int, inputs: int, bias: bool
    ) -> None:
        given, weight, scales = random(rows, inputs), integers(outputs, inputs, seed=1), random(outputs, seed=2).abs()
        added = random(outputs, seed=3) if bias else None
        if kind and can_multiply_int8(weight):
            found = CompiledGemmInt8(weight, scales)(given, added)
            roundings = 1
        else:
            found = LibraryInt8Product(weight, scales)(given, added)
            roundings = 3  # of the sum, of its scaling and with the bias
        dequantised = weight.double() * scales.double()[:, None]
        product = given.double() @ dequantised.t()
        expected = product + (0 if added is None else added.double())
        allowed = (product.abs() * (roundings - 1) + expected.abs()) * 2**-8
        allowed += 1e-6 * inputs * (given.double().abs() @ dequantised.abs().t()).max()
        assert found.shape == (rows, outputs) and found.dtype == torch.bfloat16
        assert ((found.double() - expected).abs() <= allowed).all()

    @pytest.mark.parametrize("kind", _COMPILED, indirect=True)
    def test_a_row_has_the_same_bits_in_any_batch(self, kind: int) -> None:
        """The result is zero up to rounding, so another order of summation shows at once."""
        half, weights = random(130, 256), integers(77, 256, seed=1)
        order = torch.randperm(512, generator=torch.Generator().manual_seed(2))
        given = torch.cat([half, half], 1)[:, order].contiguous()
        product = CompiledGemmInt8(torch.cat([weights, -weights], 1)[:, order], random(77, seed=3))
        together = product(given)
        assert together.float().abs().sum() > 0
        for count in range(1, 131):
            assert torch.equal(product(given[:count]), together[:count])
            assert torch.equal(product(given[130 - count :]), together[130 - count :])

    @pytest.mark.parametrize("kind", _COMPILED, indirect=True)
    def test_what_is_not_a_number_stays_in_its_row(self, kind: int) -> None:
        given, product = random(40, 64), CompiledGemmInt8(integers(48, 64), random(48, seed=1))
        expected = product(given)
        given[3] = float("nan")
        found = product(given)
        assert found[3].isnan().all()
        assert torch.equal(torch.cat([found[:3], found[4:]]), torch.cat([expected[:3], expected[4:]]))

    @pytest.mark.parametrize("kind", _COMPILED, indirect=True)
    def test_the_library_goes_on_beside_it(self, kind: int) -> None:
        """Both use the processor's tile registers, whose shapes are per-thread state."""
        given = random(24, 128, seed=1)
        ours, theirs = CompiledGemmInt8(integers(96, 128), random(96)), PackedProduct(random(96, 128))
        expected = theirs(given)
        for rows in (1, 24, 7, 24, 20):
            ours(given[:rows])
            assert torch.equal(theirs(given), expected)

    def test_where_it_can_be_had(self) -> None:
        assert can_multiply_int8(integers(64, 64)) == (_BEST in BF16_PRODUCTS)
        assert not can_multiply_int8(integers(64, 48))


def quantised_model(model: PreTrainedModel) -> PackedModel:
    return PackedModel(copy.deepcopy(model), 1000, row_exact=False, weights="int8")


class TestModel:
    # Qwen2 has biases and fused layers, GPT2 neither fused layers nor plain linear ones.
    @pytest.mark.parametrize("kind", _KINDS, indirect=True)
    @pytest.mark.parametrize("name", ["Llama", "Qwen2", "GPT2"])
    def test_it_says_what_its_rounded_weights_say(self, name: str, kind: int) -> None:
        model = tiny_model(name, torch.bfloat16)
        packed = quantised_model(model)
        assert [each for each in packed.model.modules() if isinstance(each, Int8Linear)]
        assert run_self_test(packed).error < 0.04
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | Conv1D):
                turned = isinstance(module, Conv1D)
                found, scales = quantised(module.weight.data.t() if turned else module.weight.data)
                rounded = found.to(torch.bfloat16) * scales[:, None]
                module.weight = torch.nn.Parameter(rounded.t().contiguous() if turned else rounded)
        texts = [random_tokens(40, seed=seed) for seed in range(2)]
        assert check_against_plain(model, walk(packed, texts, [20, 5])) < 0.2

    def test_it_keeps_its_embeddings_and_half_of_the_rest(self) -> None:
        model = tiny_model("Llama", torch.bfloat16, tie_word_embeddings=True)
        embedding = model.get_input_embeddings().weight.clone()
        packed = quantised_model(model)
        assert torch.equal(packed.model.get_input_embeddings().weight, embedding)
        assert packed.weight_type == "int8"
        assert packed.parameters == sum(parameter.numel() for parameter in model.parameters())

    def test_it_is_another_model(self) -> None:
        model = tiny_model("Llama", torch.bfloat16)
        plain = PackedModel(copy.deepcopy(model), 100, row_exact=False)
        assert plain.weight_type == "bfloat16"
        assert quantised_model(model).fingerprint != plain.fingerprint

    def test_other_types_are_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"weights int8.*float32"):
            quantised_model(tiny_model("Llama"))
