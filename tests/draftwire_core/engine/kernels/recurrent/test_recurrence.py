"""Recurrent layers in compiled code: the torch form's results, and the same bits with any vectors and threads."""

from collections.abc import Iterator

import pytest
import torch

from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.library import available_kernels, kernels_in_use, use_kernels
from draftwire_core.engine.kernels.recurrent import recurrence
from draftwire_core.engine.kernels.recurrent.recurrence import run
from draftwire_core.engine.kernels.recurrent.recurrence_shape import LayerMemory
from tests.harness.kernels.recurrences import SHAPES, RandomRecurrence, items_of

pytestmark = pytest.mark.skipif(compiled_library.library() is None, reason="not built: there is no C compiler")
VECTORS: tuple[Kernels, ...] = ("baseline", "avx2", "avx512", "amx", "neon", "i8mm")
Results = tuple[torch.Tensor, ...]

each_shape = pytest.mark.parametrize("kind", SHAPES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kernels, threads = kernels_in_use(), torch.get_num_threads()
    yield
    use_kernels(kernels)
    torch.set_num_threads(threads)


def results_of(made: RandomRecurrence) -> Results:
    """The rows' results, and the windows and states after the pass."""
    memory: LayerMemory = made.copied_memory()
    out = run(made.shape, made.weights, items_of(made.shape.taps), made.inputs, made.gates, memory)
    return out, memory.windows, memory.states


@each_shape
@each_dtype
def test_they_are_the_torch_forms(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    made = RandomRecurrence.of(SHAPES[kind], dtype)
    found = results_of(made)
    assert not torch.equal(found[2], made.memory.states) or not made.shape.value_heads
    monkeypatch.setattr(recurrence, "_fits", lambda *_: False)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05  # a result of the convolution may round to its neighbour
    for ours, theirs in zip(found, results_of(made), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@each_shape
@each_dtype
def test_vectors_and_threads_change_no_bit(kind: str, dtype: torch.dtype) -> None:
    made = RandomRecurrence.of(SHAPES[kind], dtype)
    there = [name for name in VECTORS if name in available_kernels()]
    assert "baseline" in there
    assert len(there) > 1
    expected = None
    for name in there:
        use_kernels(name)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = results_of(made)
            expected = expected or found
            assert all(map(torch.equal, found, expected)), (name, threads)
