"""`draftwire bench`: its arithmetic, its tables, and the command against a verifier without a model."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

import draftwire
from draftwire import Acceptance, SpeculationStats, StepTimes
from draftwire._types.drafter import Drafter
from draftwire._types.from_message import read
from draftwire_tools.bench.comparison import Plan, Setting, Turn
from draftwire_tools.bench.figures import Percentiles, figures
from draftwire_tools.bench.machine import machine
from draftwire_tools.bench.method import PLAIN, Method, parse_method
from draftwire_tools.bench.prompt import BenchPrompt, bundled_prompts, read_prompts
from draftwire_tools.bench.report import Report
from draftwire_tools.bench.services import drafter_names
from draftwire_tools.bench.time_spent import Reading, TimeSpent
from draftwire_tools.prompt_file import read_prompt_file
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Request
from tests.harness.command import Command
from tests.harness.processes import ended
from tests.harness.stand_ins.fake_service import wait_for
from tests.harness.stand_ins.fake_verifier import FakeVerifier, drafter_message, rich_status
from tests.harness.waiting import PATIENCE, sometimes

ROOT = Path(__file__).parents[3]
CODE = Setting("code", 0.0)
SHORT = ("--max-tokens", "4", "--runs", "2", "--temperature", "0")


def request(tokens: str, *arrivals: tuple[float, int], drafted: int = 0, accepted: int = 0) -> Request:
    """Returns a request whose letters are tokens; by default one arrives each second."""
    stats = SpeculationStats(len(tokens) - accepted, len(tokens), drafted, accepted, 0, [])
    came = arrivals or tuple((float(second), 1) for second in range(1, len(tokens) + 1))
    return Request(tuple(Arrival(*each) for each in came), tuple(map(ord, tokens)), stats)


def turn(method: Method, seconds: float, *requests: Request, run: int = 0, spent: TimeSpent | None = None) -> Turn:
    return Turn(method, CODE, run, 0, seconds, requests, spent or TimeSpent(0.0, 0.0, seconds))


def method(name: str, address: str = "localhost:1", acceptance: Acceptance = "coupled") -> Method:
    return Method(name, (read(Drafter, drafter_message(name, address)),), acceptance=acceptance)


# ---- Arithmetic


def test_percentiles_are_values_that_were_measured() -> None:
    assert Percentiles.of(range(100, 0, -1)) == Percentiles(50, 95, 99)
    assert Percentiles.of([3.0, 1.0]) == Percentiles(1.0, 3.0, 3.0)
    assert Percentiles.of([]) is None


def test_a_spread_is_median_lowest_and_highest() -> None:
    assert Spread.of([3.0, 1.0, 8.0]) == Spread(3.0, 1.0, 8.0, 3)


def test_tokens_of_a_chunk_share_the_time_since_the_last_one() -> None:
    found = request("abcdef", (0.5, 2), (1.5, 1), (3.5, 4))
    assert found.first_token_seconds == 0.5
    assert found.chunk_gaps == [1.0, 2.0]
    assert found.token_gaps == [1.0, 0.5, 0.5, 0.5, 0.5]


def test_ratios_are_taken_within_a_run() -> None:
    """The second run is on a machine half as fast, which must not change any ratio."""
    good = method("good")
    turns = [
        turn(good, 2.0, request("abcd")),
        turn(PLAIN, 4.0, request("abcd")),
        turn(PLAIN, 8.0, request("abcd"), run=1),
        turn(good, 4.0, request("abcd"), run=1),
    ]
    plain, ours = figures(turns)
    assert (plain.method, ours.method) == (PLAIN, good)
    assert plain.speed_up == Spread(1.0, 1.0, 1.0, 2)
    assert plain.tokens_per_second == Spread(0.75, 0.5, 1.0, 2)
    assert ours.speed_up == Spread(2.0, 2.0, 2.0, 2)
    assert ours.requests == 2


def test_figures_of_speculation() -> None:
    spent = TimeSpent(drafting=1.5, rollback=0.25, verifier=2.5)
    turns = [
        turn(PLAIN, 6.0, request("abcdef")),
        turn(method("good"), 3.0, request("abcdef", drafted=8, accepted=3), spent=spent),
    ]
    plain, good = figures(turns)
    assert (plain.acceptance_rate, plain.acceptance_length) == (None, 1.0)
    assert (good.acceptance_rate, good.acceptance_length) == (0.375, 2.0)
    assert (good.draft_share, good.rollback_share) == (0.5, 0.1)
    assert (good.differing, good.drift) == (0, 0.0)


def test_a_share_that_could_not_be_read_is_not_made_up() -> None:
    spent = TimeSpent(drafting=None, rollback=0.0, verifier=1.0)
    _, good = figures([turn(PLAIN, 1.0, request("a")), turn(method("good"), 1.0, request("a"), spent=spent)])
    assert good.draft_share is None


def test_drift_counts_from_the_first_other_token() -> None:
    turns = [
        turn(PLAIN, 1.0, request("abcd"), request("abcd")),
        turn(method("good"), 1.0, request("abxd"), request("abcd")),
    ]
    _, good = figures(turns)
    assert (good.differing, good.drift) == (1, 0.25)


def test_time_spent_is_what_services_did_between_two_readings() -> None:
    def times(**parts: float) -> StepTimes:
        return StepTimes(**{name: parts.get(name, 0) for name in StepTimes.__slots__})  # type: ignore[arg-type]

    first = Reading(times(forward=1.0, draft=1.0, rollback=1.0), (times(forward=3.0),))
    last = Reading(times(forward=3.0, draft=1.5, rollback=1.25, wait=9.0), (times(forward=4.0, plan=1.0, wait=9.0),))
    assert TimeSpent.between(first, last) == TimeSpent(drafting=2.5, rollback=0.25, verifier=2.75)
    unread = Reading(last.verifier, None)
    assert TimeSpent.between(first, unread).drafting is None


# ---- Names and prompts


def test_names_of_methods() -> None:
    assert parse_method("good", ["good"]).parts == ("good",)
    assert parse_method("local:ngram+good", ["good"]).parts == ("local:ngram", "good")
    assert parse_method("a+b@c", ["a+b@c"]).parts == ("a+b@c",)
    typical = parse_method("good@typical", ["good"])
    assert (typical.text, typical.parts, typical.acceptance) == ("good@typical", ("good",), "typical")


@pytest.mark.parametrize("name", ["good@nonsense", "good+", "good+good", "+", "@typical"])
def test_names_that_say_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"^--method {name.replace('+', '[+]')}: "):
        parse_method(name, ["good"])


def test_what_methods_ask_for() -> None:
    assert not PLAIN.speculation("expected").enabled
    good = method("good", acceptance="threshold").speculation("expected")
    assert (good.drafters, good.prediction, good.acceptance) == (["good"], None, "threshold")
    alone = Method("prediction", predicts=True).speculation("expected")
    assert (alone.drafters, alone.prediction) == (None, "expected")
    assert alone.labels  # a label that no drafter of the pool has, so that none drafts beside it


def test_the_commit_is_not_that_of_a_repository_around_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / ".venv" / "lib" / "python3" / "site-packages" / "draftwire"
    package.mkdir(parents=True)
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    for arguments in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "theirs")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(draftwire, "__file__", str(package / "__init__.py"))
    assert "commit" not in machine()


def test_what_methods_need() -> None:
    assert [needs and needs.draft_model for needs in method("good").needs] == [True]
    assert [needs and needs.draft_model for needs in method("memory", "local:suffix?shared=true").needs] == [False]
    assert [needs and needs.draft_model for needs in method("near", "local:draft?model=DIR").needs] == [True]
    assert method("new", "local:new").needs == [None]
    assert method("memory", "local:suffix").services == []


def test_lines_of_a_prompt_file_end_at_line_feeds_alone(tmp_path: Path) -> None:
    texts = ["one\u2028line", "form\ffeed", "next\x85line"]
    lines, plain = tmp_path / "lines.jsonl", tmp_path / "lines.txt"
    lines.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\r\n" for text in texts), "utf-8")
    plain.write_text("\n".join(texts), "utf-8")
    for path in (lines, plain):
        assert [entry.text for entry in read_prompt_file(path, "--prompts", by_line=True)] == texts


def test_the_mark_at_the_beginning_of_a_file_is_no_part_of_its_prompt(tmp_path: Path) -> None:
    lines, plain = tmp_path / "lines.jsonl", tmp_path / "plain.txt"
    lines.write_text('{"text": "one"}\r\n', "utf-8-sig")
    plain.write_text("one", "utf-8-sig")
    for path in (lines, plain):
        assert [entry.text for entry in read_prompt_file(path, "--prompts", by_line=False)] == ["one"]


def test_prompts_from_files(tmp_path: Path) -> None:
    lines = tmp_path / "mixed.jsonl"
    lines.write_text('{"text": "a"}\n\n{"text": "b", "id": "two", "task": "edit", "prediction": "c"}\n{"text": "d"}\n')
    whole = tmp_path / "story.txt"
    whole.write_text("once\nupon")
    assert read_prompts([lines, whole], 1) == [
        BenchPrompt("mixed", "1", "a"),
        BenchPrompt("edit", "two", "b", "c"),
        BenchPrompt("story", "story.txt", "once\nupon"),
    ]


def test_prompts_of_the_checkout() -> None:
    prompts = bundled_prompts(100)
    by_task = {task: [each for each in prompts if each.task == task] for task in ("code", "edit", "text")}
    assert {task: len(found) for task, found in by_task.items()} == {"code": 100, "edit": 6, "text": 10}
    for prompt in by_task["edit"]:
        assert prompt.prediction
        shared = set(prompt.text.splitlines()) & set(prompt.prediction.splitlines())
        assert len(shared) > len(prompt.prediction.splitlines()) / 2, prompt.name  # the same file, edited
        assert prompt.prediction not in prompt.text
    assert all(prompt.prediction is None for prompt in by_task["code"] + by_task["text"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"{", "line 1: not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "a"}', 'line 2: expected a string as "prompt"'),
        ("a.jsonl", b'{"text": "a", "prediction": 3}', '"prediction" is not a string'),
        ("a.jsonl", b"\n", "contains no prompt"),
        ("a.txt", b"", "contains no prompt"),
        ("a.txt", b"\xff", "utf-8"),
        ("a.txt", None, "No such file"),
    ],
)
def test_bad_prompt_files(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"--prompts: .*{name}.*{words}"):
        read_prompts([path], 9)


def test_drafters_need_different_names() -> None:
    assert drafter_names([Path("a/draft"), Path("b/early-1.5b.gguf")]) == ["draft", "early-1.5b"]
    with pytest.raises(ValueError, match="--draft"):
        drafter_names([Path("a/draft"), Path("b/draft")])


# ---- Reports


@pytest.fixture
def report() -> Report:
    service, local = method("good"), method("local:ngram|x", "local:ngram")
    turns = [
        turn(PLAIN, 6.0, request("abcdef")),
        turn(service, 3.0, request("abcdef", drafted=4, accepted=3)),
        turn(local, 5.0, request("abcdxf", drafted=5, accepted=1), spent=TimeSpent(None, 0.0, 1.0)),
    ]
    return Report({"cores": "2"}, figures(turns), {"localhost:1": 470_000_000})


def test_markdown_has_a_row_a_method(report: Report) -> None:
    lines = report.markdown().splitlines()
    assert lines[0] == "cores 2"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    heading, rule, plain, good, local = (
        [cell.strip() for cell in line.replace(r"\|", "/").strip("|").split("|")] for line in table
    )
    assert len({len(heading), len(rule), len(plain), len(good), len(local)}) == 1
    found = dict(zip(heading, good, strict=True))
    assert (found["task"], found["T"], found["method"]) == ("code", "0", "good")
    assert (found["speed-up"], found["accepted"], found["length"]) == ("2.00", "75%", "2.00")
    assert (found["memory"], found["draft model"]) == ("process 470 MB", "yes")
    assert (found["lossless"], found["outputs"]) == ("yes", "1 equal")
    found = dict(zip(heading, local, strict=True))
    assert (found["method"], found["drafting"], found["memory"]) == ("local:ngram/x", "?", "not reported")
    assert found["outputs"] == "1 of 1 differ, 33% of tokens"
    assert dict(zip(heading, plain, strict=True))["lossless"] == "-"


def test_the_last_table_has_each_method_once(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = [replace(each, setting=Setting("text", 0.8)) for each in report.figures if each.method.name != "good"]
    Report(report.about, [*report.figures, *elsewhere], report.memory).show()
    tables = capsys.readouterr().out.split("\n\n")
    assert [tables[0], tables[2]] == ["code, T = 0", "text, T = 0.8"]
    assert [line.split()[0] for line in tables[-1].splitlines()] == ["METHOD", "plain", "good", "local:ngram|x"]


def test_json_has_all_figures(report: Report) -> None:
    found: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    assert set(found) == {"benchmark", "about", "methods", "figures", "outputs_identical", "warnings"}
    assert [each["name"] for each in found["methods"]] == ["plain", "good", "local:ngram|x"]
    assert found["methods"][1]["memory"] == {"weights_bytes": 0, "process_bytes": 470_000_000}
    good = found["figures"][1]
    assert (good["method"], good["task"], good["temperature"]) == ("good", "code", 0.0)
    assert good["speed_up"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert good["token_gap"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    assert found["outputs_identical"] is False


def test_warnings_of_low_acceptance_and_of_outputs_that_differ(report: Report) -> None:
    assert report.broken == ["code, T = 0, local:ngram|x: 1 of 1 outputs differ from plain decoding's"]
    assert report.warnings == [
        *report.broken,
        "code, T = 0, local:ngram|x: 20% of 5 draft tokens accepted, below 50%: most of the verification was "
        "wasted, which pays only while the target has time to spare; expect less with more concurrent requests",
    ]


@pytest.mark.parametrize(("load", "warned"), [("13.0 9.0 5.0", True), ("2.0 1.0 1.0", False), ("", False)])
def test_a_warning_of_a_busy_machine(report: Report, load: str, warned: bool) -> None:
    busy = replace(report, about={"cores": "2"} | ({"load": load} if load else {}))
    found = [each for each in busy.warnings if "load average was 13.0 on 2 cores" in each]
    assert len(found) == warned
    assert len(busy.warnings) == len(report.warnings) + warned


@pytest.mark.parametrize(("asked", "warned"), [("1", False), ("2", True)])
def test_a_warning_of_too_few_prompts_for_the_requests_at_once(report: Report, asked: str, warned: bool) -> None:
    found = replace(report, about={"concurrency": asked}).warnings
    assert any(each.startswith("code: at most 1 of 2 concurrent requests ran at once") for each in found) == warned
    assert len(found) == len(report.warnings) + warned


@pytest.mark.parametrize(
    ("seconds", "told"), [(1.0, "its 4.00x is measurement error, not an effect of the method"), (4.0, None)]
)
def test_a_speed_up_without_drafts_is_no_effect(seconds: float, told: str | None) -> None:
    turns = [turn(PLAIN, 4.0, request("ab")), turn(method("prediction"), seconds, request("ab"))]
    (warning,) = Report({}, figures(turns), {}).warnings
    assert warning.startswith("code, T = 0, prediction: no draft token was verified, so it decoded plainly")
    assert ("measurement error" in warning) == (told is not None)
    assert told is None or told in warning


def test_a_range_takes_three_runs() -> None:
    good = method("good")
    turns = [
        turn(each, seconds * (1 + (run == 2) * (each is good)), request("abcd"), run=run)
        for run in range(3)
        for each, seconds in ((PLAIN, 4.0), (good, 2.0))
    ]
    assert "2.00 (1.00-2.00)" in Report({}, figures(turns), {}).markdown()
    assert "(" not in Report({}, figures(turns[:4]), {}).markdown()


@pytest.mark.parametrize(("columns", "all_there"), [("80", False), ("119", False), ("120", True), ("200", True)])
def test_a_short_line_has_fewer_columns(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, all_there: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    exact = replace(report, figures=[each for each in report.figures if not each.differing])
    exact.show()
    shown = capsys.readouterr().out
    assert ("TOKEN MS" in shown, "TRAINING" in shown, "LOSSLESS" in shown) == (all_there, all_there, True)
    assert all_there or max(map(len, shown.splitlines())) <= 80
    notes: list[str] = []
    report.show_notes(notes.append)
    assert ("more columns" in notes[0]) != all_there
    assert max(len(line) for note in notes for line in note.splitlines()) <= max(int(columns), 90)
    assert [note.startswith("warning: ") for note in notes[-2:]] == [True, True]
    assert "TOKEN MS" not in exact.markdown() and "token ms" in exact.markdown()


def test_only_exact_methods_have_to_agree() -> None:
    lossy = method("good@typical", acceptance="typical")
    turns = [turn(PLAIN, 1.0, request("ab")), turn(lossy, 1.0, request("ac", drafted=1, accepted=1))]
    report = Report({}, figures(turns), {})
    assert (report.figures[1].differing, report.broken) == (1, [])


@pytest.mark.parametrize(("told", "word"), [(True, "in distribution"), (False, "no")])
def test_what_is_lossless_is_what_the_verifier_told(told: bool, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rejection with an untrusted drafter is not lossless."""
    other = method("good@rejection", acceptance="rejection")
    second = request("ab", drafted=1, accepted=1)
    second = replace(second, stats=replace(second.stats, lossless=told))
    turns = [turn(PLAIN, 1.0, request("ab")), turn(other, 1.0, request("ab", drafted=1, accepted=1))]
    elsewhere = [turn(PLAIN, 1.0, request("ab")), turn(other, 1.0, second)]
    report = Report({}, figures([*turns, *(replace(each, setting=Setting("text", 0.8)) for each in elsewhere)]), {})
    assert [each["lossless"] for each in report.to_json()["methods"]] == [True, told]
    rows = [line.rstrip("| ") for line in report.markdown().splitlines() if "good@rejection" in line]
    assert rows[0].endswith("in distribution")
    assert rows[1].endswith(word)
    report.show()
    assert capsys.readouterr().out.rstrip().endswith(word)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_picture_is_a_png(report: Report, tmp_path: Path) -> None:
    from draftwire_tools.bench.plot import plot

    plot(report.figures, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# ---- The command


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "code.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    return str(path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verifier: FakeVerifier) -> Command:
    monkeypatch.setenv("DRAFTWIRE_VERIFIER", verifier.address)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist may set it
    return Command(monkeypatch, capsys)


def test_methods_take_turns_on_the_same_requests(
    command: Command, verifier: FakeVerifier, prompts: str, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    done = command("bench", "--prompts", prompts, *SHORT, "--seed", "5", "--json", str(found))
    assert done.code == 0, done.err
    for heading in ("code, T = 0", "SPEED-UP", "ROLLBACK", "MEMORY"):
        assert heading in done.out
    asked = verifier.requests[3:]  # the first three are warm-up requests
    assert len(asked) == 2 * 3 * 3
    by_turn = [
        (each.sampling.seed, each.text, each.speculation.drafter_names[0] if each.speculation.enabled else "plain")
        for each in asked
    ]
    assert by_turn[:6] == [
        (5, "one", "plain"),
        (5, "one", "good"),
        (5, "one", "bad"),
        (6, "two", "good"),
        (6, "two", "bad"),
        (6, "two", "plain"),
    ]
    assert by_turn[9] == (8, "one", "good")
    assert {(each.max_tokens, each.ignore_eos, each.sampling.temperature) for each in asked} == {(4, True, 0.0)}
    report = json.loads(found.read_text())
    assert [each["name"] for each in report["methods"]] == ["plain", "good", "bad"]
    assert report["outputs_identical"] is True


def test_files_are_written_even_if_the_output_cannot_be(
    command: Command, monkeypatch: pytest.MonkeyPatch, prompts: str, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        done = command("bench", "--prompts", prompts, *SHORT, "--json", str(found))
    assert (done.code, "No space left on device" in done.err) == (1, True)
    assert json.loads(found.read_text())["figures"]


def test_requests_run_side_by_side(command: Command, verifier: FakeVerifier, prompts: str) -> None:
    verifier.delay = 0.05

    def side_by_side() -> bool:
        done = command("bench", "--prompts", prompts, *SHORT, "--method", "good", "--concurrency", "3")
        assert done.code == 0, done.err
        assert verifier.most_running <= 3
        return verifier.most_running == 3

    sometimes(side_by_side, "three run at once")


def test_an_address_is_attached_meanwhile(command: Command, verifier: FakeVerifier, prompts: str) -> None:
    names = ("--method", "local:suffix", "--method", "good+local:suffix")
    done = command("bench", "--prompts", prompts, *SHORT, "--count", "1", *names)
    assert done.code == 0, done.err
    changes = [name for name in verifier.calls if name in ("AttachDrafter", "DetachDrafter")]
    assert changes == ["AttachDrafter", "DetachDrafter"]
    assert verifier.calls[-1] == "DetachDrafter"
    assert {tuple(each.speculation.drafter_names) for each in verifier.requests} == {
        (),
        ("local:suffix",),
        ("good", "local:suffix"),
    }


def test_it_is_detached_when_a_request_fails(command: Command, verifier: FakeVerifier, prompts: str) -> None:
    verifier.break_after, verifier.break_status = [0], rich_status(StatusCode.INTERNAL, "a fault", "INTERNAL")
    done = command("bench", "--prompts", prompts, "--method", "local:suffix", *SHORT)
    assert done.code == 1
    assert "a fault" in done.err
    assert verifier.calls[-1] == "DetachDrafter"


def test_other_outputs_are_a_failure(command: Command, verifier: FakeVerifier, prompts: str, tmp_path: Path) -> None:
    verifier.skew_drafted = 1
    found = tmp_path / "found.json"
    done = command("bench", "--prompts", prompts, *SHORT, "--method", "good", "--json", str(found))
    assert done.code == 1
    assert "6 of 6 outputs differ from plain decoding's" in done.err
    assert done.err.splitlines()[-1] == "draftwire: outputs that must be equal differ"
    assert json.loads(found.read_text())["outputs_identical"] is False


def test_a_prediction_is_for_tasks_that_bring_one(command: Command, verifier: FakeVerifier, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "task": "edit", "prediction": "y"}\n{"text": "z", "task": "text"}\n')
    done = command("bench", "--prompts", str(path), *SHORT, "--method", "prediction")
    assert done.code == 0, done.err
    predicted = {each.text: each.speculation.prediction.text for each in verifier.requests if each.speculation.enabled}
    assert predicted == {"x": "y"}


def test_predictions_that_the_verifier_refuses_are_no_method(
    command: Command, verifier: FakeVerifier, tmp_path: Path
) -> None:
    path = tmp_path / "edit.jsonl"
    path.write_text('{"text": "x", "prediction": "y"}\n')
    verifier.refused = ["speculation.prediction"]
    done = command("bench", "--prompts", str(path), *SHORT)
    assert done.code == 0, done.err
    assert verifier.requests and not any(each.speculation.prediction.text for each in verifier.requests)


def test_wrong_input_is_one_line_that_names_the_option(
    command: Command, verifier: FakeVerifier, prompts: str, tmp_path: Path
) -> None:
    for arguments, words in (
        (("--method", "nobody"), ("--method nobody", "no drafter nobody", "good, bad")),
        (("--method", "plain"), ("--method plain", "always measured")),
        (("--method", "prediction"), ("--method prediction", "prediction")),
        (("--method", "good@sometimes"), ("--method good@sometimes", "coupled")),
        (("--prompts", str(tmp_path / "none.jsonl")), ("--prompts", "none.jsonl")),
        (("--json", str(tmp_path / "none" / "a.json")), ("--json", "none")),
        (("--markdown", str(tmp_path)), ("--markdown",)),
        (("--draft", str(tmp_path)), ("--draft", "--target")),
        (("--target", str(tmp_path)), ("--target", "no model")),
        (("--runs", "0"), ("--runs",)),
    ):
        done = command("bench", "--prompts", prompts, *arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
        for word in words:
            assert word in done.err
    assert not verifier.requests


def test_no_verifier(command: Command, prompts: str) -> None:
    done = command("bench", "--prompts", prompts, "--verifier", "127.0.0.1:1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err


def test_a_picture_needs_matplotlib(command: Command, prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[..., Any] = importlib.util.find_spec
    missing = lambda name, *rest: None if name == "matplotlib" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    done = command("bench", "--prompts", prompts, "--plot", "a.png")
    assert done.code == 1
    assert "--plot requires matplotlib: pip install -e '.[bench]'" in done.err


def test_predictions_are_for_tasks_all_of_whose_prompts_bring_one() -> None:
    edit, text = BenchPrompt("edit", "1", "a", "b"), BenchPrompt("text", "2", "c")
    methods = [PLAIN, Method("prediction", predicts=True)]
    plan = Plan([edit, edit, edit, text], (0.0, 0.8), 4, runs=3, concurrency=2, seed=1)
    slots = plan.slots(methods)
    assert plan.predicted
    assert len(slots) == 3 * 2 * (2 * 2 + 1 * 1)
    assert {slot.setting.task for slot in slots if slot.method.predicts} == {"edit"}
    assert not Plan([text], (0.0,), 4, 1, 1, 1).predicted


@pytest.mark.processes
class TestServicesOfItsOwn:
    @pytest.mark.usefixtures("fake_module")
    def test_with_services_of_its_own(self, prompts: str, tmp_path: Path) -> None:
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "config.json").write_text("{}")
        (tmp_path / "good.gguf").touch()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "sdk")])}
        arguments = ["--target", "target", "--draft", "good.gguf", "--method", "bad", "--prompts", prompts, *SHORT]
        done = subprocess.run(
            [sys.executable, "-m", "draftwire.cli", "bench", *arguments, "--json", "found.json"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / "found.json").read_text())
        assert [each["name"] for each in report["methods"]] == ["plain", "good", "bad"]
        assert report["about"]["threads of each service"] == "1"
        assert all(ended(wait_for(tmp_path / f"{name}.pid")) for name in ("target", "good.gguf"))
        assert (tmp_path / "good.gguf.tokenizer").read_text() == "target"
