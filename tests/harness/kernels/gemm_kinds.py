"""The kernels of products, of which a test uses one after the other."""

import platform
from collections.abc import Iterator

import pytest

from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels.library import GEMM_KERNELS, LIBRARY, available_kernels
from draftwire_core.engine.kernels.products import compiled_product

_THERE = available_kernels() if LIBRARY.exists() else ()
NUMBERS = {name: GEMM_KERNELS.index(name) for name in GEMM_KERNELS if name in _THERE}
"""The kernels that can run here, slowest first, with the library's numbers for them (`csrc/ops.h`)."""
BLOCK_KERNELS: tuple[Kernels, ...] = (
    ("baseline", "neon", "dotprod", "i8mm")
    if platform.machine() == "aarch64"
    else ("baseline", "avx2", "avxvnni", "avx512vnni", "amx")
)
"""Those of this architecture that differ in their code for weights in blocks."""


def number_of(kernels: Kernels) -> int:
    """Returns the library's number for kernels; skips the test if they cannot run here."""
    if kernels not in NUMBERS:
        pytest.skip(f"{kernels} cannot run here")
    return NUMBERS[kernels]


@pytest.fixture(params=BLOCK_KERNELS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test once with each kind of kernels; skips those that cannot run here."""
    _use(number_of(request.param), monkeypatch)


def each_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Uses each kind of kernels that can run here in turn, and yields its name."""
    for name in BLOCK_KERNELS:
        if name in NUMBERS:
            _use(NUMBERS[name], monkeypatch)
            yield name


def _use(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_product, "gemm_kind", lambda: number)
