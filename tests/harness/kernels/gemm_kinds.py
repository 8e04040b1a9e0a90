"""The kernels of products of quantised weights, of which a test uses one after the other."""

from collections.abc import Iterator

import pytest

from speculative_engine.kernels import compiled_product
from speculative_engine.kernels.library import LIBRARY

KINDS = {0: "plain C", 1: "AVX2", 3: "AVX-512 with VNNI"}
"""Names of the kernels by the library's numbers for them (`csrc/ops.h`)."""
BEST = compiled_product.gemm_kind() if LIBRARY.exists() else 0
"""The largest number that this processor supports."""


@pytest.fixture(params=[pytest.param(number, id=name) for number, name in KINDS.items()])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test once with each kind of kernels; skips those that this processor does not support."""
    if request.param > BEST:
        pytest.skip(f"this processor has no {KINDS[request.param]}")
    _use(request.param, monkeypatch)


def each_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Uses each kind of kernels that this processor supports in turn, and yields its name."""
    for number, name in KINDS.items():
        if number <= BEST:
            _use(number, monkeypatch)
            yield name


def _use(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_product, "gemm_kind", lambda: number)
