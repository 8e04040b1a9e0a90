"""`draftwire calibrate` on a real model."""

import json
import sys
from pathlib import Path

import pytest

from draftwire.cli.app import main
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.verifier.fixtures import timed_twice  # noqa: F401


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["draftwire", "calibrate", "early-exit", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "w1 w2 w3"}\n\n{"text": "w4 w5"}\n')
    return path


def test_each_number_of_layers_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checkpoint: Path, prompts: Path
) -> None:
    flags = ["--model", checkpoint, "--prompts", prompts, "--tokens", 8, "--dtype", "float32", "--threads", 1]
    assert run(monkeypatch, *flags, "--temperature", 0.8, "--json") == 0
    told = capsys.readouterr()
    stages = [line.partition(" (after ")[0] for line in told.err.splitlines() if line.startswith("calibrating: ")]
    parts = ("2 texts continued by 8 tokens each", "time of a step", "exit after 1 of 2 layers")
    assert stages == [f"calibrating: {part}" for part in parts]
    found = json.loads(told.out)
    assert found["tokens"] == 16
    assert [each["layers"] for each in found["exits"]] == [1]
    assert 0 <= found["exits"][0]["agreement"] <= 1
    assert found["best_layers"] in (1, None)
    prompts.with_suffix(".txt").write_text("w1 w2\n")
    flags[3] = prompts.with_suffix(".txt")
    assert run(monkeypatch, *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("8 tokens, temperature 0; a step takes ")
    assert lines[1].split() == ["LAYERS", "AGREEMENT", "MS/ROUND", "DRAFTED", "SPEED-UP"]
    assert lines[-1].startswith("best: ")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--prompts", "missing.txt"], 2, "--prompts: missing.txt"),
        (["--model", "./missing"], 1, "./missing"),
        (["--model", "./[/missing]"], 1, "model ./[/missing]: no such directory"),
        (["--tokens", "0"], 2, "--tokens"),
        (["--tokens", "256"], 2, "tokens: must be at least 1 and leave room"),
        (["--dtype", "int3"], 2, "--dtype"),
    ],
)
def test_what_is_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    prompts: Path,
    flags: list[str],
    code: int,
    words: str,
) -> None:
    assert run(monkeypatch, "--model", checkpoint, "--prompts", prompts, *flags) == code
    *_, line = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json\n", "line 1: not valid JSON"),
        ('{"text": "w1"}\n{"txt": "w1"}\n', 'line 2: expected a string as "prompt" or "text"'),
        ("[]\n", "line 1: expected a JSON object"),
    ],
)
def test_prompts_of_another_form(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    prompts: Path,
    text: str,
    words: str,
) -> None:
    prompts.write_text(text)
    assert run(monkeypatch, "--model", checkpoint, "--prompts", prompts) == 2
    assert words in capsys.readouterr().err
