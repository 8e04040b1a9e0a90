"""Mixtures of experts: what transformers' say, with the same bits for a row in any batch."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from draftwire_core.engine.device.choices import Kernels, TargetWeights
from draftwire_core.engine.kernels.library import LIBRARY, available_kernels, use_kernels
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.experts.experts import Experts, SortedExperts
from draftwire_core.engine.model.linear.block_linear import BlockLinear
from draftwire_core.engine.model.linear.packed_weight import PackedWeight
from draftwire_core.engine.model.linear.row_exact import RowExactLinear
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import check_against_plain, random_tokens, walk
from tests.harness.engine.expert_models import EXPERT_MODELS, EXPERTS, expert_model

KINDS: dict[str, tuple[torch.dtype, TargetWeights]] = {
    "float32": (torch.float32, "checkpoint"),
    "bfloat16": (torch.bfloat16, "checkpoint"),
    "q8_0": (torch.bfloat16, "q8_0"),
}
SORTS = ("AriaText", "Dbrx", "DeepseekV3", "Gemma4", "GptOss", "HunYuanMoEV1", "JetMoe", "Qwen2Moe")
"""Models of all sorts of experts and routers: with weights turned, in a layout of their own, groups of experts, another
activation, biases, a router in the block, rows that are sorted, and an expert that all rows take."""
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


@pytest.fixture(params=["auto", "avx2"])
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test with the best kernels, and with those of processors with AVX2 alone."""
    chosen: Kernels = request.param
    if chosen not in ("auto", *available_kernels()):
        pytest.skip(f"{chosen} cannot run here")
    use_kernels(chosen)
    yield
    use_kernels("auto")


def experts_of(model: PackedModel) -> list[Experts]:
    return [each for each in model.model.modules() if isinstance(each, Experts)]


def packed(name: str, kind: str, **changes: object) -> PackedModel:
    dtype, weights = KINDS[kind]
    return PackedModel(expert_model(name, dtype, **changes), 1000, weights=weights)


def check_says(name: str) -> None:
    model = expert_model(name)
    ours = PackedModel(copy.deepcopy(model), 1000)
    assert any(isinstance(each, Experts | SortedExperts) for each in ours.model.modules())
    assert any(isinstance(getattr(each, "weight", None), PackedWeight) for each in ours.model.modules())
    assert check_against_plain(model, walk(ours, [random_tokens(16, seed=1)], [10])) < 1e-4


@pytest.mark.parametrize("name", SORTS)
def test_they_say_what_those_of_transformers_say(name: str) -> None:
    check_says(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "float32") for name in SORTS), ("GptOss", "bfloat16"), ("JetMoe", "bfloat16"), ("DeepseekV3", "q8_0")],
)
def test_the_self_test_finds_them_bit_exact(name: str, kind: str) -> None:
    assert run_self_test(packed(name, kind)).bit_exact


def check_batch_invariance(name: str, kind: str, length: int, prompts: list[int]) -> None:
    """Rows have the same bits in prompts and trees of two texts as one by one."""
    ours = packed(name, kind)
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    together = walk(ours, texts, prompts)
    alone = walk(ours, texts, [1] * 2, trees=False, together=False)
    both = together.keys() & alone.keys()
    assert len(both) > 3 * length // 4
    assert all(torch.equal(together[prefix], alone[prefix]) for prefix in both)


@pytest.mark.parametrize(("name", "kind"), [("DeepseekV3", "float32"), ("GptOss", "bfloat16"), ("Qwen2Moe", "q8_0")])
def test_a_row_has_the_same_bits_in_any_batch(name: str, kind: str) -> None:
    check_batch_invariance(name, kind, 16, [9, 3])


@torch.inference_mode()
def check_rows(name: str, kind: str, count: int, some: tuple[int, ...]) -> None:
    """Some of so many rows have the same bits as one by one."""
    experts = experts_of(packed(name, kind))[0]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 64, generator=generator).to(KINDS[kind][0])
    chosen = torch.rand(count, EXPERTS - 1, generator=generator).argsort(-1)[:, :2]  # nobody takes the last one
    shares = torch.rand(count, 2, generator=generator).to(KINDS[kind][0])
    alone = torch.cat([experts(*(each[row : row + 1] for each in (hidden, chosen, shares))) for row in range(count)])
    for rows in (*some, count):
        assert torch.equal(experts(hidden[:rows], chosen[:rows], shares[:rows]), alone[:rows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Qwen3Moe", "Gemma4"])
def test_any_number_of_rows(name: str, kind: str) -> None:
    """With an activation that is fused, and with another one."""
    check_rows(name, kind, 70, (1, 2, 3, 17, 33))


@needs_library
@pytest.mark.parametrize("name", ["Afmoe", "DeepseekV3", "Qwen2Moe"])
def test_only_experts_are_quantised(name: str) -> None:
    ours = packed(name, "q8_0")
    assert {type(each) for experts in experts_of(ours) for each in experts.down.linears} == {BlockLinear}
    weights = [each.weight for each in ours.model.modules() if isinstance(getattr(each, "weight", None), PackedWeight)]
    assert weights and all(isinstance(weight.linear(), RowExactLinear) for weight in weights)


@needs_library
def test_inputs_that_are_no_blocks_stay_as_they_are() -> None:
    experts = experts_of(packed("Qwen3Moe", "q8_0", moe_intermediate_size=48))[0]
    assert {type(each) for each in experts.gate_and_up.linears} == {BlockLinear}
    assert {type(each) for each in experts.down.linears} == {RowExactLinear}


@pytest.mark.parametrize("name", ["DeepseekV2", "DeepseekV3", "Dbrx", "GptOss", "MiniMaxM2", "Phimoe", "Qwen3Moe"])
def test_of_equal_experts_the_first_are_taken(name: str) -> None:
    model = expert_model(name)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and len(weight) == EXPERTS:
            weight.data.zero_()
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if key.endswith(("router.bias", "e_score_correction_bias")):
            tensor.data.zero_()
    ours = PackedModel(model, 1000)
    chosen: list[torch.Tensor] = []
    for experts in experts_of(ours):
        experts.register_forward_pre_hook(lambda _, inputs: chosen.append(inputs[1]))
    walk(ours, [random_tokens(20)], [12])
    assert len(chosen) > 3
    assert all(torch.equal(each, torch.tensor([0, 1]).expand_as(each)) for each in chosen)


@pytest.mark.slow
class TestAll:
    """All models, with all kinds of weights and kernels."""

    @pytest.mark.parametrize("name", [name for name in EXPERT_MODELS if name not in SORTS])
    def test_they_say_what_those_of_transformers_say(self, name: str) -> None:
        check_says(name)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", EXPERT_MODELS)
    def test_the_self_test_finds_them_bit_exact(self, name: str, kind: str) -> None:
        assert run_self_test(packed(name, kind)).bit_exact

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["Qwen2Moe", "DeepseekV3", "GptOss", "JetMoe"])
    def test_a_row_has_the_same_bits_in_any_batch(self, name: str, kind: str, kernels: None) -> None:
        check_batch_invariance(name, kind, 40, [25, 5])

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["Qwen3Moe", "Gemma4", "MiniMaxM3VL"])
    def test_any_number_of_rows(self, name: str, kind: str, kernels: None) -> None:
        check_rows(name, kind, 300, (1, 2, 3, 7, 16, 33, 65))
