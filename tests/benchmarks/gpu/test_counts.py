"""The counts of what steps ask of a GPU, which none is needed for."""

import json
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import counts

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")]
A_STEP = {"copies back": 1, "copies to the device": 1, "launches": 3, "waits": 1}


def counted(parts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns the figures of some parts."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(counts, "ARCHITECTURES", ("Llama",))
    monkeypatch.setattr(counts, "SIZES", ((3, 700),))
    monkeypatch.setattr(sys, "argv", ["counts", "--json", "--parts", parts])
    counts.main()
    about, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert about["benchmark"] == "counts"
    return {line["figure"]: line["value"] for line in lines}


def test_what_a_step_sends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figures = counted("slots", monkeypatch, capsys)
    listed, tables = (figures[f"3 x 700 tokens, {kind}: bytes of a step"] for kind in ("listed", "tables"))
    assert listed - tables == 4 * 3 * (700 // 64 * 64)
    assert figures["3 x 700 tokens, tables: ms to lay out and fill"]["median"] > 0


@pytest.mark.slow
class TestKernels:
    """Of Triton's interpreter, on the pretended GPU."""

    def test_what_is_counted(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """The figures of docs/gpu.md. Ranks have a test of their own (`test_kernel_ranks.py`) with the same counts."""
        figures = counted("kernels,steps,drafts", monkeypatch, capsys)
        assert figures["Llama: kernels a layer"] == 9
        assert figures["Llama: kernels of a pass of 32 layers"] == 302
        for kind in ("plain", "drafted", "top-k and top-p"):
            assert figures[f"a step, {kind}"] == A_STEP
        assert figures["a step that enters a further tile of committed tokens"] == A_STEP | {"launches": 4}
        assert figures["drafting 4 tokens of each sequence"] == A_STEP | {"launches": 1}
        assert figures["drafting 1 tokens of each sequence"]["copies to the device"] == 2


@pytest.mark.parametrize(
    ("options", "interpreted", "message"),
    [
        ([], "0", "run it with TRITON_INTERPRET=1"),
        (["--parts", "steps,nothing"], "1", "no such part: nothing; there are kernels, steps, drafts, ranks, slots"),
    ],
)
def test_what_cannot_be_counted(
    options: list[str],
    interpreted: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setattr(sys, "argv", ["counts", *options])
    with pytest.raises(SystemExit):
        counts.main()
    assert message in capsys.readouterr().err
