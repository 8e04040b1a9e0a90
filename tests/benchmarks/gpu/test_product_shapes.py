"""The times of products by shape, in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import product_shapes
from benchmarks.gpu.product_shapes import shapes


def test_it_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["product_shapes", "--device", "cpu", "--blocks", "16,64"])
    product_shapes.main()
    printed = capsys.readouterr().out
    for rows, block in ((1, 16), (16, 16), (64, 64), (128, 64)):
        assert f"toy, {rows} rows in blocks of {block}: microseconds" in printed
    assert "failed" not in printed


def test_shapes_fit_into_registers() -> None:
    assert all(shape.outputs * 2 * 128 // (32 * shape.warps) <= 256 for shape in shapes(128, True))
    assert len(set(shapes(16, False))) > 50


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["product_shapes"])
    with pytest.raises(SystemExit, match="no CUDA device"):
        product_shapes.main()
