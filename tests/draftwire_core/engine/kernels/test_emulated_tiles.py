"""AMX's products of weights in blocks give the bits of all others: with emulated tiles, on any processor with VNNI."""

import subprocess
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.kernels import build
from draftwire_core.engine.kernels.library import GEMM_KERNELS
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, CompiledBlockGemm
from draftwire_core.engine.kernels.products.gemm_groups import CompiledGroupGemm
from tests.harness.engine.random_blocks import random_blocks
from tests.harness.kernels.driver import DRIVER, compile_driver, products
from tests.harness.kernels.gemm_kinds import number_of
from tests.harness.suite.skipped import needs

COMPILER = "gcc"
OUTPUTS, INPUTS, GROUP = 37, 512, 64
pytestmark = [
    pytest.mark.slow,
    needs(COMPILER),
    pytest.mark.skipif(not build.LIBRARY.exists(), reason="the compiled library was not built"),
]


def integers(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of 4 bits of the given outputs, their scales, and their zero points."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (OUTPUTS, INPUTS), generator=generator, dtype=torch.uint8)
    scales = torch.rand(OUTPUTS, INPUTS // GROUP, generator=generator)
    return codes[first:last], scales[first:last], codes[first:last, : INPUTS // GROUP]


def test_tiles_give_the_same_bits(tmp_path: Path) -> None:
    kinds = [number_of("baseline"), number_of("avx512vnni"), GEMM_KERNELS.index("amx")]
    weights: list[CompiledProduct] = [
        CompiledBlockGemm(name, random_blocks(name, OUTPUTS, INPUTS, byte=byte))
        for name in FORMATS
        for byte in (None, 0x80, 0xFF)
    ]
    weights += [CompiledGroupGemm(integers, bits, OUTPUTS, INPUTS, GROUP) for bits in (4, 8)]
    calls, program = tmp_path / "calls", tmp_path / "program"
    calls.write_bytes(b"".join(products(weights, OUTPUTS, INPUTS)))
    compile_driver(COMPILER, program, '-DDRAFTWIRE_TILES="emulated_tiles.h"', f"-I{DRIVER.parent}", "-O1")
    found = {subprocess.run([program, calls, str(kind)], check=True, capture_output=True).stdout for kind in kinds}
    (same,) = found
    assert same
