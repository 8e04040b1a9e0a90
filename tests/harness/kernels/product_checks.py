"""What tests of all compiled products share: rows, exact rounding, the vectors of the documentation, law 1."""

import re
from fractions import Fraction

import numpy as np
import torch

from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from tests.harness.checkout import ROOT


def random_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Returns normally distributed numbers, bfloat16 [*shape]."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def rounded(rows: torch.Tensor, inputs: int = 32) -> torch.Tensor:
    """Returns rows rounded to 8 bits per block of so many inputs, float64."""
    blocks = rows.float().unflatten(1, (-1, inputs))
    most = blocks.abs().amax(-1, keepdim=True)
    whole = (blocks * torch.where(most > 0, 127 / most, 0)).round()
    return (whole.double() * (most / 127).double()).flatten(1)


def nearest(value: Fraction) -> np.float32:
    """Returns the float32 nearest to an exact value, ties to even."""
    found = np.float32(float(value))
    near = [np.nextafter(found, np.float32(-np.inf)), found, np.nextafter(found, np.float32(np.inf))]
    return min(near, key=lambda each: (abs(Fraction(float(each)) - value), int(each.view(np.int32)) & 1))


def assert_documented(name: str, results: torch.Tensor) -> None:
    """Compares the first four of some results, bfloat16, with the row of a type in docs/engine.md."""
    page = (ROOT / "docs" / "engine.md").read_text()
    (line,) = re.findall(rf"^\| `{name}` \| `([0-9a-f ]+)` \|$", page, re.MULTILINE)
    assert line.split() == [f"{each & 0xFFFF:04x}" for each in results[:4].view(torch.int16).tolist()]


def assert_same_bits_in_any_batch(product: CompiledProduct, rows: torch.Tensor) -> None:
    """Multiplies the first and the last rows, of each number of them, and compares with all together."""
    together = product(rows)
    for count in range(1, len(rows) + 1):
        assert torch.equal(product(rows[:count]), together[:count])
        assert torch.equal(product(rows[len(rows) - count :]), together[len(rows) - count :])


def assert_threads_change_no_bit(product: CompiledProduct, rows: torch.Tensor) -> None:
    """Multiplies with 1, 2, 3 and 20 threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = product(rows)
        for threads in (2, 3, 20):
            torch.set_num_threads(threads)
            assert torch.equal(product(rows), alone)
    finally:
        torch.set_num_threads(before)
