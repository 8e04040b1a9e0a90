"""The questions for a GPU, asked on a CPU, so that they work when one is at hand."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.questions import __main__ as queue
from benchmarks.harness.results import Result, write
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

FIGURES = {
    "01_shape_bits": {"as expected": True, "ruled out": []},
    "02_true_shapes": {"llama-8b: graphs": "0"},
    "03_throughput": {"drafted outputs are the plain ones": True},
    "04_taps": {"equal bits": True},
    "05_few_bits": {"as expected": True, "ruled out": []},
    "06_library_products": {},
    "07_loading": {},
    "08_host_drafters": {},
    "09_keys_of_8_bits": {"equal bits": True},
}


def answered(name: str, **machine: str) -> Result:
    return Result(name, None, "abc", "2026-01-01T00:00:00+00:00", None, {"processor": "p", **machine}, {}, None, {})


def test_questions_say_what_is_expected_and_what_follows() -> None:
    assert set(queue.questions()) == set(FIGURES)
    for name in queue.questions():
        text = ast.get_docstring(ast.parse((queue.FOLDER / f"{name}.py").read_text()))
        assert text is not None and text.partition("\n")[0].endswith("?")
        assert f"python -m benchmarks.gpu.questions.{name}" in text
        assert "\nExpected" in text and "\nIf " in text


def test_the_queue_is_what_no_gpu_has_answered(tmp_path: Path) -> None:
    assert queue.unanswered(tmp_path) == queue.questions()
    write(answered("01_shape_bits"), tmp_path)
    assert queue.unanswered(tmp_path) == queue.questions()
    write(answered("02_true_shapes", gpu="NVIDIA H200"), tmp_path)
    assert queue.unanswered(tmp_path) == [name for name in queue.questions() if name != "02_true_shapes"]


def test_questions_are_asked_while_time_is_left(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    now, asked = [0.0], []

    def ask(name: str, device: str, place: Path | None, seconds: float) -> bool:
        asked.append((name, device, place, seconds))
        now[0] += 200
        return name != "01_shape_bits"

    monkeypatch.setattr(queue, "ask", ask)
    monkeypatch.setattr(queue, "unanswered", queue.questions)
    monkeypatch.setattr(queue.time, "monotonic", lambda: now[0])
    with pytest.raises(SystemExit) as ended:
        queue.main(["--minutes", "5", "--results", "kept"])
    assert ended.value.code == 1
    assert asked == [
        ("01_shape_bits", "cuda", Path("kept"), 240.0),
        ("02_true_shapes", "cuda", Path("kept"), 100.0),
    ]
    assert capsys.readouterr().err == f"left for the next time: {', '.join(queue.questions()[2:])}\n"
    with pytest.raises(SystemExit):
        queue.main(["--device", "cpu", "03_throughput"])
    assert asked[2][:2] == ("03_throughput", "cpu") and len(asked) == 3


def test_a_question_that_fails_or_takes_long_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert not queue.ask("00_nothing", "cpu", None, LONG_PATIENCE)
    assert not queue.ask("03_throughput", "cpu", None, 0.01)
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert told == [
        {"question": "00_nothing", "failed": "status 1"},
        {"question": "03_throughput", "failed": "more than 0 s"},
    ]


@pytest.mark.slow
class TestEach:
    @pytest.mark.parametrize("name", FIGURES)
    def test_on_a_cpu(self, name: str, tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk")])}
        command = [sys.executable, "-m", f"benchmarks.gpu.questions.{name}", "--device", "cpu"]
        done = subprocess.run(
            [*command, "--results", str(tmp_path)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * LONG_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        answer = json.loads(line)
        assert answer["question"] == name and answer["gpu"] is None and answer["figures"]["seconds"] > 0
        assert answer["figures"].items() >= FIGURES[name].items()
        timed = [value for key, value in answer["figures"].items() if key.endswith((" ms", "tokens/s"))]
        assert all(isinstance(value, float) for value in timed)
        assert [file.parent.name for file in tmp_path.glob("*/*.json")] == [name]
