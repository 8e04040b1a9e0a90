"""The ways of reading weights in blocks: none changes a bit, and one of them is chosen by measuring, once."""

from collections.abc import Iterator
from typing import get_args

import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products import block_reading as module
from draftwire_core.engine.kernels.products.block_reading import (
    BlockReading,
    block_reading,
    choose_block_reading,
    use_block_reading,
)
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType, CompiledBlockGemm
from tests.harness.engine.random_blocks import random_blocks
from tests.harness.kernels.product_checks import random_rows

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

WAYS: tuple[BlockReading, ...] = get_args(BlockReading)


@pytest.fixture(autouse=True)
def undecided() -> Iterator[None]:
    """A process that has chosen nothing; afterwards it reads as before."""
    before = list(module._chosen)
    module._chosen.clear()
    yield
    use_block_reading(*(before or WAYS[:1]))
    module._chosen[:] = before


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("rows", [1, 7, 20])
def test_no_way_changes_a_bit(weights: BlockType, rows: int) -> None:
    product, given = CompiledBlockGemm(weights, random_blocks(weights, 300, 768)), random_rows(rows, 768)
    found = []
    for way in WAYS:
        use_block_reading(way)
        assert block_reading() == way
        found.append(product(given))
    assert found[0].float().abs().sum() > 0
    assert all(torch.equal(each, found[0]) for each in found)


def test_weights_that_fit_a_cache_choose_nothing() -> None:
    choose_block_reading([CompiledBlockGemm("q8_0", random_blocks("q8_0", 300, 768))])
    assert not module._chosen
    assert block_reading() == "side by side"


def test_a_process_chooses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    product = CompiledBlockGemm("q8_0", random_blocks("q8_0", 300, 768))
    monkeypatch.setattr(module, "_LEAST_BYTES", 1)
    choose_block_reading([product])
    assert module._chosen in [[way] for way in WAYS]
    other: BlockReading = "in order" if block_reading() == "side by side" else "side by side"
    use_block_reading(other)
    choose_block_reading([product])
    assert block_reading() == other
