"""Fused layers equal transformers' layers, and replace no others. Their bits: test_bit_equality.py."""

import copy
import dataclasses
from statistics import median

import pytest
import torch

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kernels.products.gemm import can_multiply
from draftwire_core.engine.loading.self_test import UnsupportedModelError, run_self_test
from draftwire_core.engine.model.layers import layer_fusion
from draftwire_core.engine.model.layers.fused_layer import FusedLayer
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import (
    Rows,
    check_against_plain,
    error,
    packed,
    plain_rows,
    random_tokens,
    run_in_parts,
    tiny_model,
    walk,
)
from tests.harness.engine.fused_models import FUSED_MODELS, PARTLY_FUSED, SIZES, fused_model

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
needs_library = pytest.mark.skipif(layer_fusion.library() is None, reason="not built: there is no C compiler")


ALL = [*FUSED_MODELS, *PARTLY_FUSED]
TYPES = [torch.float32, torch.bfloat16]
EACH_ONCE = pytest.mark.parametrize(("case", "dtype"), [(case, TYPES[place % 2]) for place, case in enumerate(ALL)])
"""Each model in one type; all combinations are slow."""
SOME = ALL[::4]


def fused(model: PackedModel) -> bool:
    return all(isinstance(layer, FusedLayer) for layer in model.model.model.layers)


def whole(model: PackedModel) -> bool:
    return all(layer.is_whole for layer in model.model.model.layers)


def check_they_are_the_librarys(case: str, dtype: torch.dtype) -> None:
    model = fused_model(case, dtype)
    ours = packed(copy.deepcopy(model))
    assert fused(ours)
    assert whole(ours) == (case in FUSED_MODELS)
    rows = walk(ours, [random_tokens(22, seed=1), random_tokens(11, seed=2)], [12, 5])
    if dtype == torch.float32:
        assert max(errors(rows, plain_rows(model, rows))) < 2e-4
        return
    theirs = {prefix: row for prefix, row in plain_rows(model, rows).items() if prefix in rows}
    expected = plain_rows(model.float(), rows)
    if case in FUSED_MODELS:  # they round less than transformers' layers do, though not in each ill-conditioned row
        assert median(errors(rows, expected)) < median(errors(theirs, expected))
    else:  # rounding chooses other experts in some rows, which are then far off
        assert median(errors(rows, expected)) < max(0.15, 2 * median(errors(theirs, expected)))


def errors(found: Rows, expected: Rows) -> list[float]:
    return [error(row, expected[prefix]) for prefix, row in found.items()]


@needs_library
@EACH_ONCE
def test_they_are_the_librarys(case: str, dtype: torch.dtype) -> None:
    check_they_are_the_librarys(case, dtype)


@needs_library
def test_a_share_that_transformers_code_ignores() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ours = packed(tiny_model("Llama", hidden_size=128, head_dim=64, rope_parameters=rope))
    assert fused(ours) and run_self_test(ours).bit_exact


def check_the_self_test_compares(case: str, dtype: torch.dtype) -> None:
    model = packed(fused_model(case, dtype))
    assert run_self_test(model).bit_exact
    layer = model.model.model.layers[1]
    layer._parts = dataclasses.replace(layer._parts, multiplier=-2.0)  # transformers' layer keeps its own value
    if layer.compiled is not None:
        layer.compiled.call.multiplier = -2.0
    with pytest.raises(UnsupportedModelError, match="cannot be served"):
        run_self_test(model)


@needs_library
@pytest.mark.parametrize(("case", "dtype"), [(case, TYPES[place % 2]) for place, case in enumerate(SOME)])
def test_the_self_test_compares_them_with_the_librarys(case: str, dtype: torch.dtype) -> None:
    check_the_self_test_compares(case, dtype)


def check_one_call_gives_the_bits_of_its_parts(case: str, weights: Weights) -> None:
    model = fused_model(case, torch.bfloat16)
    ours = PackedModel(model, 400, row_exact=weights == "checkpoint", weights=weights)
    layers = ours.model.model.layers
    if layers[0].compiled is None:
        pytest.skip("this processor has no compiled products of these weights")
    texts = [random_tokens(140, seed=1), random_tokens(25, seed=2)]
    whole = walk(ours, texts, [100, 5])
    run_in_parts(ours)
    in_parts = walk(ours, texts, [100, 5])
    assert whole.keys() == in_parts.keys()
    assert all(torch.equal(whole[prefix], in_parts[prefix]) for prefix in whole)


WEIGHTS: list[Weights] = ["checkpoint", "int8"]


@needs_library
@pytest.mark.parametrize(("case", "weights"), [(case, WEIGHTS[place % 2]) for place, case in enumerate(SOME)])
def test_one_call_gives_the_bits_of_its_parts(case: str, weights: Weights) -> None:
    check_one_call_gives_the_bits_of_its_parts(case, weights)


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("case", ALL)
class TestAllTypes:
    @DTYPES
    def test_they_are_the_librarys(self, case: str, dtype: torch.dtype) -> None:
        check_they_are_the_librarys(case, dtype)

    @DTYPES
    def test_the_self_test_compares_them_with_the_librarys(self, case: str, dtype: torch.dtype) -> None:
        check_the_self_test_compares(case, dtype)

    @pytest.mark.parametrize("weights", WEIGHTS)
    def test_one_call_gives_the_bits_of_its_parts(self, case: str, weights: Weights) -> None:
        check_one_call_gives_the_bits_of_its_parts(case, weights)


@needs_library
@pytest.mark.parametrize(
    "case", ["grouped heads", "inputs by token, shared keys", "experts, sinks", "gated attention, delta nets"]
)
def test_threads_change_no_bit(case: str) -> None:
    model = packed(fused_model(case, torch.bfloat16, intermediate_size=1280))
    if not can_multiply(model.model.get_input_embeddings().weight):
        pytest.skip("no compiled products here: the library's are exact for a number of threads each")
    texts = [random_tokens(120, seed=1), random_tokens(25, seed=2)]
    alone = walk(model, texts, [100, 5])
    torch.set_num_threads(3)
    together = walk(model, texts, [100, 5])
    assert alone.keys() == together.keys()
    assert all(torch.equal(alone[prefix], together[prefix]) for prefix in alone)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Glm", {}),
        ("Starcoder2", {}),
        ("Llama", {"hidden_size": 72}),
    ],
)
def test_other_layers_are_left_as_they_are(name: str, changes: dict[str, object]) -> None:
    model = tiny_model(name, **{**SIZES, **changes})
    ours = packed(model)
    assert not fused(ours)
    assert check_against_plain(model, walk(ours, [random_tokens(30)], [20])) < 1e-3


def test_without_the_library_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_fusion, "library", lambda: None)
    assert not fused(packed(tiny_model("Llama", **SIZES)))


def test_all_weights_count_once() -> None:
    model = tiny_model("Llama", **SIZES)
    weights = sum(parameter.numel() for parameter in model.parameters())
    ours = packed(model)
    assert ours.parameters == weights
    tensors = [*ours.model.buffers(), *ours.model.parameters()]
    held = {id(each) if each.is_mkldnn else each.data_ptr(): each.numel() for each in tensors}
    # The embedding is kept for lookup and, packed, for the logits; a norm's weight is shared with transformers' own.
    assert sum(held.values()) < 1.1 * weights + model.get_input_embeddings().weight.numel()
