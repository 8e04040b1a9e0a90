"""Calls of the library for `driver.c`, which runs them on any processor or emulator."""

import struct
import subprocess
from pathlib import Path

import torch

from draftwire_core.engine.kernels import build
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from tests.harness.checkout import ROOT

DRIVER = ROOT / "tests" / "harness" / "kernels" / "driver.c"
GEMM, NORM, ROPE, ANGLES, SILU, ATTENTION, SAMPLE, RECURRENCE = range(8)
ROW_COUNTS = 1, 3, 11, 33


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Returns random numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def encoded(operation: int, numbers: tuple[float, ...], *buffers: torch.Tensor | bytes | None) -> bytes:
    """Returns a call as driver.c reads it."""
    found = [struct.pack(f"<qq{len(numbers)}dq", operation, len(numbers), *numbers, len(buffers))]
    for each in buffers:
        data = b"" if each is None else each if isinstance(each, bytes) else _bytes(each)
        found.append(struct.pack("<q", len(data)) + data)
    return b"".join(found)


def products(weights: list[CompiledProduct], outputs: int, inputs: int) -> list[bytes]:
    """Returns calls that multiply few and many rows by each of the weights, all but the first with a bias: bfloat16
    rows, and float32 ones as decoder layers have them."""
    return [
        encoded(
            GEMM, (rows, outputs, inputs, weight.group, weight.number, wide),
            random(rows, inputs, dtype=torch.float32 if wide else torch.bfloat16), weight.stored,
            random(outputs) if rows > 1 else None, bytes((4 if wide else 2) * rows * outputs),
        )
        for weight in weights
        for rows in ROW_COUNTS
        for wide in (False, True)
    ]  # fmt: skip


def compile_driver(compiler: str, program: Path, *options: str) -> None:
    """Compiles the driver together with the library's sources. Raises CalledProcessError."""
    command = [
        compiler, *(flag for flag in build.FLAGS if flag != "-shared"), '-DDRAFTWIRE_SOURCE_HASH="of a test"', *options,
        f"-I{build.SOURCES}", str(DRIVER), *map(str, sorted(build.SOURCES.rglob("*.c"))),
        "-o", str(program), *build.LINKED,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=build.COMPILE_SECONDS)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())
