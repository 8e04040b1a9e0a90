"""The demo with services that have no model: its steps and its child processes, which always end."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from draftwire import Chunk, Client, GenerateOptions
from draftwire.cli.failure import Failure
from draftwire_tools.demo.command import find_models
from draftwire_tools.demo.story import DemoDrafter, DemoReport, DemoScreen, Silence, tell
from draftwire_tools.demo.terminal import Terminal
from draftwire_tools.service import Service
from tests.harness.processes import ended
from tests.harness.stand_ins.fake_service import wait_for
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
OPTIONS: GenerateOptions = {"max_tokens": 100, "temperature": 0.7, "seed": 1, "ignore_eos": True}


class Kill:
    def __init__(self) -> None:
        self.done = False

    def __call__(self) -> None:
        self.done = True


class Reader(Silence):
    """A screen that shows nothing, and tells when the last chunk has come: the text that was held back."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def chunk(self, chunk: Chunk) -> None:
        if not chunk.token_ids:
            self.end.set()


def drafters() -> tuple[DemoDrafter, DemoDrafter, Kill]:
    kill = Kill()
    return DemoDrafter("early", "here:1", Kill()), DemoDrafter("draft", "here:2", kill), kill


def told(client: Client, screen: DemoScreen, verifier: FakeVerifier) -> DemoReport:
    """Runs the demo's steps, again if the request ended before its drafters were swapped and killed."""
    verifier.delay = 0.01

    def once() -> DemoReport | None:
        verifier.calls.clear()
        verifier.requests.clear()
        first, second, kill = drafters()
        try:
            report = tell(client, PROMPT, first, second, screen, OPTIONS)
        except Failure:
            assert not kill.done
            return None
        assert kill.done
        return report

    return sometimes(once, "the drafters are swapped and killed within the request")


def test_the_story(client: Client, verifier: FakeVerifier) -> None:
    report = told(client, Silence(), verifier)
    assert report.identical
    found = report.to_json()
    assert (found["tokens"], found["steps"], found["swaps"], found["kills"]) == (100, 50, 1, 1)
    assert found["acceptance_length"] == 2.0
    assert set(found) >= {"identical", "acceptance_rate", "seconds", "plain_seconds"}
    pool_calls = [name for name in verifier.calls if name.endswith("Drafter")]
    assert pool_calls == ["AttachDrafter", "AttachDrafter", "SwapDrafter"]
    assert [r.speculation.enabled for r in verifier.requests] == [False, False, True, True]


def test_a_different_text_is_seen(client: Client, verifier: FakeVerifier) -> None:
    verifier.skew_drafted = 1
    assert not told(client, Silence(), verifier).identical


def test_a_request_that_ends_too_early_is_a_failure(client: Client, verifier: FakeVerifier) -> None:
    reader = Reader()
    verifier.swaps_after = reader.end
    first, second, kill = drafters()
    with pytest.raises(Failure, match="--max-tokens"):
        tell(client, PROMPT, first, second, reader, OPTIONS)
    assert verifier.calls.count("SwapDrafter") == 1
    assert not kill.done


def test_notes_stay_out_of_text_that_is_piped(
    client: Client, verifier: FakeVerifier, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(Console(width=100, highlight=False), {"early": "cyan", "good": "green"})
    report = told(client, terminal, verifier)
    shown = capsys.readouterr()
    assert PROMPT + report.drafted.text in shown.out
    assert "swapped early for draft" not in shown.out
    assert shown.err.splitlines() == ["draftwire demo: swapped early for draft", "draftwire demo: killed draft"]


def test_the_terminal_shows_text_and_figures(client: Client, verifier: FakeVerifier) -> None:
    console = Console(width=100, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    terminal = Terminal(console, {"early": "cyan", "good": "green"})
    report = told(client, terminal, verifier)
    terminal.report(report)
    text = console.export_text()
    assert "swapped early for draft" in text
    assert "killed draft" in text
    drawn = text.replace(" swapped early for draft ", "").replace(" killed draft ", "")
    assert PROMPT + report.drafted.text in drawn
    assert "identical to plain decoding" in text
    assert "yes" in text


@pytest.fixture
def service(fake_module: str, tmp_path: Path) -> Iterator[Service]:
    made = Service("fake", fake_module, tmp_path / "model", tmp_path)
    yield made
    made.terminate()
    made.wait()


def test_a_service_is_ready_and_ends(service: Service, tmp_path: Path) -> None:
    eventually(service.is_ready, "it is ready")
    pid = wait_for(tmp_path / "model.pid")
    service.kill()
    assert ended(pid)


def test_a_service_that_cannot_start_shows_its_log(fake_module: str, tmp_path: Path) -> None:
    service = Service("fake", fake_module, tmp_path / "broken", tmp_path)
    service.wait()
    with pytest.raises(Failure, match="no model in there"):
        service.is_ready()


def test_models_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--models"):
        find_models(tmp_path)
    make_models(tmp_path)
    assert find_models(tmp_path) == tmp_path


def make_models(directory: Path) -> None:
    for name in ("target", "draft", "draft-early"):
        (directory / name).mkdir()
        (directory / name / "config.json").write_text("{}")
    (directory / "inflate.py").write_text("")


# A shell starts its background jobs with SIGINT ignored, and children inherit that. The new process itself undoes it:
# code between fork and exec can crash the child, as this process has threads of gRPC (grpc/grpc#43055).
DEMO = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("draftwire.cli", run_name="__main__", alter_sys=True)
"""


def start_demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    make_models(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "sdk")])}
    return subprocess.Popen(
        [sys.executable, "-c", DEMO, "demo", "--models", str(tmp_path), *arguments],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("fake_module")
def test_the_whole_command(tmp_path: Path) -> None:
    process = start_demo(tmp_path, "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["identical"] is True
    assert (report["swaps"], report["kills"]) == (1, 1)
    assert all(ended(wait_for(tmp_path / f"{name}.pid")) for name in ("target", "draft", "draft-early"))


@pytest.mark.usefixtures("fake_module")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = start_demo(tmp_path, "--max-tokens", "100000")
    pids = [wait_for(tmp_path / f"{name}.pid") for name in ("target", "draft", "draft-early")]
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    assert all(ended(pid) for pid in pids)
