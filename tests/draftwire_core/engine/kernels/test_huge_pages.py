"""Weights copied into huge pages keep their values."""

import pytest
import torch

from draftwire_core.engine.kernels.huge_pages import in_huge_pages


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [1, 1000, 5000])
def test_a_copy_with_the_same_elements(rows: int, dtype: torch.dtype) -> None:
    tensor = torch.randint(-100, 100, (700, rows)).to(dtype).t()
    copy = in_huge_pages(tensor)
    assert copy.is_contiguous()
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(copy, tensor)
    if tensor.nbytes >= 1 << 21:
        assert copy.data_ptr() % (1 << 21) == 0, "a page that begins elsewhere is a usual one"
