"""The library on ARM gives the bits that it gives here: built by a cross compiler and run by an emulator."""

import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.kernels import build
from draftwire_core.engine.kernels.kv_rows import KV_TYPES, STORED, rounded, stored_width
from draftwire_core.engine.kernels.library import GEMM_KERNELS
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm import CompiledGemm
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType, CompiledBlockGemm
from draftwire_core.engine.kernels.products.gemm_fp8 import CompiledFp8Gemm
from draftwire_core.engine.kernels.products.gemm_groups import CompiledGroupGemm
from tests.harness.checkout import ROOT
from tests.harness.engine.random_blocks import random_blocks
from tests.harness.kernels.driver import (
    ANGLES,
    ATTENTION,
    DRIVER,
    NORM,
    ROPE,
    SAMPLE,
    SILU,
    compile_driver,
    encoded,
    products,
    random,
)
from tests.harness.kernels.gemm_kinds import NUMBERS
from tests.harness.kernels.recurrences import SHAPES, RandomRecurrence
from tests.harness.suite.skipped import needs
from tests.harness.wheels import build_wheels

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
NATIVE = "gcc"
pytestmark = [
    pytest.mark.slow,
    needs(COMPILER, EMULATOR, NATIVE),
    pytest.mark.skipif(not build.LIBRARY.exists(), reason="the compiled library was not built"),
]

LIBC = "/usr/aarch64-linux-gnu"
NEON, DOTPROD, I8MM = map(GEMM_KERNELS.index, ("neon", "dotprod", "i8mm"))
SLOTS, DIM = 90, 80


def all_products() -> list[bytes]:
    outputs, inputs, group = 37, 512, 64
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 126, (outputs, inputs), generator=generator, dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // group, generator=generator) * 0.01
    kinds: list[BlockType] = list(FORMATS)
    weights: list[CompiledProduct] = [
        CompiledGemm(random(outputs, inputs, dtype=dtype)) for dtype in (torch.bfloat16, torch.float16)
    ]
    weights += [
        CompiledBlockGemm(kind, random_blocks(kind, outputs, inputs, byte=byte))
        for kind in kinds
        for byte in (None, 0x80, 0xFF)
    ]
    floats = codes.view(torch.float8_e4m3fn)
    zeros = codes[:, : inputs // group] % 16

    def integers(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return codes[first:last] % 16, scales[first:last], zeros[first:last]

    weights += [CompiledGroupGemm(integers, bits, outputs, inputs, group) for bits in (4, 8)]
    weights.append(
        CompiledFp8Gemm(lambda first, last: (floats[first:last], scales[first:last]), outputs, inputs, group)
    )
    return products(weights, outputs, inputs)


def operations(bf16: bool) -> list[bytes]:
    dtype, size = (torch.bfloat16, 2) if bf16 else (torch.float32, 4)
    rows, heads, kv_heads = 5, 4, 2
    projected = random(rows, (heads + 2 * kv_heads) * 64, dtype=dtype)
    angles = random(rows, 64, dtype=dtype), random(rows + 1, 64, dtype=dtype)[1:]
    kept = bytes(kv_heads * SLOTS * 64 * size)
    kept_in_8_bits = bytes(kv_heads * SLOTS * stored_width(64))
    found = [
        encoded(
            NORM, (rows, 96, 1e-5, bf16), random(rows, 96, dtype=dtype), random(96, dtype=dtype),
            bytes(rows * 96 * size),
        ),
        *(
            encoded(
                ROPE, (rows, heads, kv_heads, 64, SLOTS, 0.125, 1e-6, bf16, kv_type), projected, *angles,
                random(64, dtype=dtype), random(64, dtype=dtype), torch.arange(3, 3 + rows),
                bytes(heads * rows * 64 * 4), space, space,
            )
            for kv_type, space in ((KV_TYPES[dtype], kept), (KV_TYPES[STORED], kept_in_8_bits))
        ),
        encoded(
            ANGLES, (40, 64, 1.25, bf16), torch.arange(40) ** 3, 1e4 ** (-torch.arange(32) / 32),
            bytes(40 * 64 * size), bytes(40 * 64 * size),
        ),
        encoded(SILU, (rows, 48, bf16), 9 * random(rows, 96, dtype=dtype), bytes(rows * 48 * size)),
        encoded(
            SAMPLE, (3, 700, 700, 5, bf16), 4 * random(3, 700, dtype=dtype), torch.tensor([1.0, 0.7, 1.3]),
            torch.tensor([5, -7, 9]), torch.tensor([1, 2, 3]), torch.tensor([1, 0, 0], dtype=torch.uint8),
            b"".join(struct.pack("<qddf4x", k, p, t, -5.0) for k, p, t in ((0, 1, 1), (40, 0.9, 1), (0, 0.8, 0.9))),
            bytes(3 * 5 * 8), bytes(3 * 5 * 4), bytes(3 * 5 * 4),
        ),
    ]  # fmt: skip
    longest = SLOTS // 16 * 16 + 32
    sinks = random(heads, dtype=torch.float32)
    for dim, window, softcap, sink, narrow in (
        (DIM, 0, 0.0, None, False), (DIM, 20, 0.0, sinks, False), (DIM, 0, 3.0, None, False), (64, 20, 0.0, sinks, True)
    ):  # fmt: skip
        keys = random(kv_heads, SLOTS, dim, dtype=dtype)
        kv = rounded(keys) if narrow else keys
        found.append(
            encoded(
                ATTENTION,
                (
                    rows,
                    kv_heads,
                    2,
                    SLOTS,
                    dim,
                    dim,
                    longest,
                    window,
                    1,
                    16 * 2 * longest,
                    softcap,
                    KV_TYPES[kv.dtype],
                ),
                random(heads, rows, dim, dtype=torch.float32),
                kv,
                kv,
                bytes(rows * heads * dim * 4),
                bytes(16 * 2 * longest * 4),
                sink,
                torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1)),
                torch.tensor([0, 0, rows]),
                torch.arange(rows),
                torch.arange(SLOTS - rows, SLOTS) + 1,
            )
        )
    found += [RandomRecurrence.of(shape, dtype).encoded() for shape in SHAPES.values()]
    return found


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("calls") / "calls"
    file.write_bytes(b"".join([*all_products(), *operations(True), *operations(False)]))
    return file


@pytest.fixture(scope="module")
def here(calls: Path) -> bytes:
    """The results of this machine's library."""
    program = calls.with_name("native")
    subprocess.run([NATIVE, f"-I{build.SOURCES}", str(DRIVER), str(build.LIBRARY), "-o", str(program)], check=True)
    kinds = [str(NUMBERS[name]) for name in ("baseline", "avx2", "avxvnni", "avx512", "avx512vnni") if name in NUMBERS]
    found = {subprocess.run([program, calls, kind], check=True, capture_output=True).stdout for kind in kinds}
    (same,) = found
    assert same
    return same


def compiled_by_gcc(place: Path) -> Path:
    """The driver with the library's sources, compiled by Debian's cross compiler."""
    program = place / "by-gcc"
    compile_driver(COMPILER, program)
    return program


def of_the_wheel(place: Path) -> Path:
    """The driver with the library that the release's wheel for ARM has."""
    built = build_wheels(place, ["aarch64"])
    with zipfile.ZipFile(built.services["aarch64"]) as wheel:
        library = place / build.LIBRARY.name
        library.write_bytes(wheel.read(str(build.LIBRARY.relative_to(ROOT))))
    program = place / "of-the-wheel"
    linked = [f"-I{build.SOURCES}", str(DRIVER), str(library), "-Wl,-rpath,$ORIGIN", "-o", str(program)]
    subprocess.run([COMPILER, *linked], check=True, timeout=build.COMPILE_SECONDS)
    return program


@pytest.fixture(scope="module", params=[compiled_by_gcc, of_the_wheel], ids=["compiled by GCC", "the wheel's library"])
def emulated(request: pytest.FixtureRequest, calls: Path) -> Path:
    """A program for ARM that runs the calls."""
    make: Callable[[Path], Path] = request.param
    return make(calls.parent)


@pytest.mark.parametrize(
    ("processor", "kind", "used"),
    [("max", 0, 0), ("max", NEON, NEON), ("max", DOTPROD, DOTPROD), ("max", -1, I8MM), ("cortex-a57", -1, NEON)],
    ids=["plain C", "NEON", "dot products", "the best of a new processor", "the best of an old processor"],
)
def test_arm_gives_the_same_bits(
    processor: str, kind: int, used: int, emulated: Path, calls: Path, here: bytes
) -> None:
    command = [EMULATOR, "-L", LIBC, "-cpu", processor, str(emulated), str(calls), str(kind)]
    ended = subprocess.run(command, check=True, capture_output=True)
    assert int(ended.stderr) == used
    assert ended.stdout == here
