"""Every way in which a pass may cut a product is tried at load."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.kernels import product, product_trial
from draftwire_core.engine.model.cuda.kernels.product import MOST_ROWS, ROW_BLOCKS, Cuts, Gate, Shape, multiply
from draftwire_core.engine.model.cuda.kernels.product_trial import try_product

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CPU = torch.device("cpu")
PROCESSORS = range(84, 171)
"""Of NVIDIA's larger GPUs since Ampere, from a GeForce RTX 3090 Ti to an RTX 5090; an H100 has 132."""
PRODUCTS: dict[str, list[tuple[int, Gate | None]]] = {
    "Llama 3.1 8B": [(6144, None), (4096, None), (14_336, "silu"), (128_256, None)],
    "Llama 3.2 1B": [(3072, None), (2048, None), (8192, "silu")],
    "Qwen3 4B": [(6144, None), (2560, None), (9728, "silu"), (151_936, None)],
    "Gemma 2 2B": [(4096, None), (2304, None), (9216, "gelu"), (256_000, None)],
}
SUBSETS = [ROW_BLOCKS, (16, 128), (64, 128), (128,)]
"""Sizes of blocks that a trial may leave."""
Fault = Callable[[int, Shape], bool]


class Multiplications:
    """Products that are noted, and zeros; of a cut with a fault ones."""

    def __init__(self, fault: Fault = lambda block, shape: False):
        self.cuts: list[tuple[int, Shape]] = []
        self._fault = fault

    def multiply(self, inputs: Tensor, weight: Tensor, *, gate: Gate | None, dtype: torch.dtype, cuts: Cuts) -> Tensor:
        outputs = len(weight) if gate is None else len(weight) // 2
        cut = cuts.cut(len(inputs), outputs, gate is not None, CPU)
        self.cuts.append(cut)
        return torch.full((len(inputs), 1), float(self._fault(*cut)), dtype=dtype)


def of(outputs: int, gate: Gate | None) -> Tensor:
    return torch.empty(outputs if gate is None else 2 * outputs, 1)


def noted(monkeypatch: pytest.MonkeyPatch, fault: Fault = lambda block, shape: False) -> Multiplications:
    found = Multiplications(fault)
    monkeypatch.setattr(product_trial, "multiply", found.multiply)
    return found


@pytest.mark.parametrize("name", PRODUCTS)
def test_all_that_passes_may_reach_is_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = sorted(
        {*range(1, 18), *range(31, MOST_ROWS, 32), *range(64, MOST_ROWS + 1, 64), *range(65, MOST_ROWS, 64)}
    )
    for processors in PROCESSORS:
        monkeypatch.setattr(product, "processors", lambda _, number=processors: number)
        for outputs, gate in PRODUCTS[name]:
            tried = noted(monkeypatch)
            try_product(of(outputs, gate), gate)
            reachable = {
                Cuts(blocks).cut(rows, outputs, gate is not None, CPU) for blocks in SUBSETS for rows in counts
            }
            assert reachable == set(tried.cuts), (processors, outputs)
            assert len(tried.cuts) == len(reachable), "nothing twice"


def test_the_trial_launches_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Llama 3.1 8B on an H100; attention takes four more. They were 65 when four sizes of each block were tried."""
    monkeypatch.setattr(product, "processors", lambda _: 132)
    tried = noted(monkeypatch)
    for outputs, gate in [*PRODUCTS["Llama 3.1 8B"], (4096, None)]:  # `o` and `down` differ in their inputs
        try_product(of(outputs, gate), gate)
    assert len(tried.cuts) == 27


def test_more_rows_are_cut_as_the_most_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors in PROCESSORS:
        monkeypatch.setattr(product, "processors", lambda _, number=processors: number)
        for outputs in (2560, 4096, 6144):
            most = Cuts().cut(MOST_ROWS, outputs, False, CPU)
            assert all(Cuts().cut(rows, outputs, False, CPU) == most for rows in (1025, 1500, 4096))


def test_sizes_of_blocks_that_give_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "processors", lambda _: 132)
    noted(monkeypatch, lambda block, shape: block == 64)
    cuts, lost = try_product(of(4096, None), None)
    assert cuts == Cuts((16, 128)) and lost == ("4096 x 1 in blocks of 64 rows and 32 outputs",)


def test_if_shapes_of_the_largest_blocks_differ_the_prompts_shape_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "processors", lambda _: 132)
    largest = Cuts().cut(MOST_ROWS, 4096, False, CPU)
    tried = noted(monkeypatch, lambda block, shape: (block, shape) == largest)
    cuts, lost = try_product(of(4096, None), None)
    assert cuts == Cuts((128,), largest[1]) and len(lost) == len(set(tried.cuts)) - 1
    assert {cuts.cut(rows, 4096, False, CPU) for rows in (1, 17, 65, 600, MOST_ROWS)} == {largest}


def test_products_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.eye(64, dtype=torch.bfloat16)[:20]  # exact in any order
    assert try_product(weight, None) == (Cuts(), ())

    def worse(inputs: Tensor, weight: Tensor, *, gate: Gate | None, dtype: torch.dtype, cuts: Cuts) -> Tensor:
        found = multiply(inputs, weight, gate=gate, dtype=dtype, cuts=cuts)
        return found + (2 if cuts.row_blocks == (16,) else 0)

    monkeypatch.setattr(product_trial, "multiply", worse)
    assert try_product(weight, "silu").cuts == Cuts((64, 128))
