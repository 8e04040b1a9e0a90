"""``draftwire top``: figures computed from two readings, and their layout where there is little room."""

import asyncio
import json
import os
import pty
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from draftwire import Drafter, Learning, LearningRound, StepCost
from draftwire._types.from_message import read
from draftwire._types.model import read_verifier_info
from draftwire.cli.failure import Failure
from draftwire.v1 import drafter_pool_service_pb2 as pool
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_tools.top import command as top_command
from draftwire_tools.top.drafter_figures import drafter_figures
from draftwire_tools.top.event import Event, pool_changes
from draftwire_tools.top.planner_figures import cost_of
from draftwire_tools.top.sample import Sample
from draftwire_tools.top.screen import Screen
from draftwire_tools.top.snapshot import Snapshot
from draftwire_tools.top.verifier_figures import PARTS, VerifierFigures, verifier_figures
from draftwire_tools.top.view import Layout, lines
from draftwire_tools.top.watch import watching
from tests.harness.command import Command
from tests.harness.stand_ins.fake_verifier import FakeVerifier

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ADDRESS = "127.0.0.1:50051"


def drafter(name: str, **fields: Any) -> Drafter:
    message = pool.Drafter(name=name, address=f"{name}:50052", state=pool.DRAFTER_STATE_READY)
    message.attached_at.FromDatetime(STARTED)
    return replace(read(Drafter, message), **fields)


def reading(at: float, steps: int, *drafters: Drafter, started: datetime = STARTED, preemptions: int = 0) -> Sample:
    """Returns a verifier's counters after `steps` steps of 10 ms: 8 ms forward, 1 ms wait, 1 ms wire. Each step has two
    sequences and commits three tokens."""
    response = pb.GetModelInfoResponse()
    response.model.model_id = "target"
    response.started_at.FromDatetime(started)
    engine = response.engine
    engine.running_sequences, engine.waiting_requests = 2, 1
    engine.used_slots, engine.total_slots, engine.preemptions = 30, 64, preemptions
    engine.times.steps = steps
    for part, milliseconds in (("forward", 8), ("wait", 1), ("wire", 1)):
        getattr(engine.times, part).FromMilliseconds(milliseconds * steps)
    planner = engine.planner
    for rows, milliseconds in ((1, 5), (3, 7)):
        planner.step_costs.add(rows=rows).time.FromMilliseconds(milliseconds)
    planner.steps, planner.sequences, planner.draft_tokens, planner.last_draft_tokens = steps, 2 * steps, 5 * steps, 6
    planner.waits, planner.expected_tokens, planner.committed_tokens = steps // 10, steps, 2 * steps
    engine.acceptance.add(rule=1, requests=steps // 50, tokens=2 * steps)
    engine.acceptance.add(rule=4, requests=steps // 50, tokens=steps)
    return Sample(at, read_verifier_info(response), list(drafters))


def test_rates_are_differences() -> None:
    figures = verifier_figures(ADDRESS, reading(12.0, 250), reading(10.0, 100))
    assert (figures.state, figures.running, figures.waiting) == ("ready", 2, 1)
    assert (figures.used_slots, figures.total_slots) == (30, 64)
    assert figures.tokens_per_second == 225  # of both rules
    assert figures.requests_per_second == 3
    assert figures.steps_per_second == 75
    assert figures.step_seconds == pytest.approx(0.010)
    assert figures.time_shares == pytest.approx(
        dict.fromkeys(PARTS, 0.0) | {"forward": 0.6, "wait": 0.075, "wire": 0.075}
    )
    assert figures.uptime_seconds is not None
    assert figures.uptime_seconds > 0


def test_the_planner_beside_plain_decoding() -> None:
    planner = verifier_figures(ADDRESS, reading(12.0, 250), reading(10.0, 100)).planner
    assert planner is not None
    assert planner.sequences_per_step == 2
    assert planner.draft_tokens_per_sequence == 2.5
    assert planner.tokens_per_sequence == 1.5
    assert planner.last_draft_tokens == 6
    plain_step = 0.008 * 6 / 7  # a pass of 2 rows instead of 7
    assert planner.plain_tokens_per_second == pytest.approx(2 / plain_step)
    assert planner.speed_up == pytest.approx(3 / 0.009 / (2 / plain_step))  # without wire time
    assert planner.waits_per_second == 7.5
    assert planner.gained_tokens_per_second == 75


def test_one_reading_has_no_rates() -> None:
    figures = verifier_figures(ADDRESS, reading(10.0, 100), None)
    assert (figures.running, figures.tokens_per_second, figures.time_shares, figures.planner) == (2, None, None, None)


def test_a_verifier_that_does_nothing() -> None:
    figures = verifier_figures(ADDRESS, reading(12.0, 100), reading(10.0, 100))
    assert (figures.tokens_per_second, figures.steps_per_second, figures.step_seconds) == (0, 0, None)
    assert figures.planner is not None
    assert (figures.planner.speed_up, figures.planner.tokens_per_sequence) == (None, None)
    assert figures.time_shares == dict.fromkeys(PARTS, 0.0)


def test_a_pass_that_began_before_both_readings_and_ended_between_them() -> None:
    now = reading(12.0, 101)
    times = replace(now.info.engine.times, steps=100)
    now = replace(now, info=replace(now.info, engine=replace(now.info.engine, times=times)))
    planner = verifier_figures(ADDRESS, now, reading(10.0, 100)).planner
    assert planner is not None
    assert (planner.tokens_per_sequence, planner.plain_tokens_per_second, planner.speed_up) == (1.5, None, None)


def test_counts_of_another_start_are_not_compared() -> None:
    assert reading(12.0, 250).follows(reading(10.0, 100))
    assert not reading(12.0, 250, started=STARTED + timedelta(seconds=1)).follows(reading(10.0, 100))
    assert not reading(12.0, 90).follows(reading(10.0, 100))


def test_cost_between_and_beyond_the_points() -> None:
    points = [StepCost(1, 0.005), StepCost(3, 0.007)]
    assert [cost_of(rows, points) for rows in (0.5, 1, 2, 3, 9)] == pytest.approx([0.005, 0.005, 0.006, 0.007, 0.007])
    assert cost_of(1, []) is None


def test_drafters() -> None:
    before = reading(10.0, 100, drafter("good", draft_tokens=100, accepted_tokens=80, stale_nodes=5))
    known = drafter(
        "good",
        draft_tokens=140,
        accepted_tokens=90,
        stale_nodes=9,
        lossy_draft_tokens=20,
        sequences=2,
        step_seconds=0.003,
    )
    good, late = drafter_figures(ADDRESS, reading(12.0, 250, known, drafter("late", draft_tokens=7)), before)
    assert (good.name, good.sequences, good.step_seconds) == ("good", 2, 0.003)
    assert good.acceptance_rate == pytest.approx(90 / 140)
    assert good.recent_acceptance_rate == pytest.approx(0.25)
    assert (good.draft_tokens_per_second, good.stale_nodes_per_second) == (30, 2)
    assert (late.draft_tokens_per_second, late.recent_acceptance_rate) == (None, None)
    again = drafter("good", draft_tokens=3, attached_at=STARTED + timedelta(seconds=9))
    (attached_anew,) = drafter_figures(ADDRESS, reading(12.0, 250, again), before)
    assert attached_anew.draft_tokens_per_second is None


def test_a_swap_in_words() -> None:
    old, new = drafter("old", sequences=3), drafter("new", state="connecting")
    moving = [replace(old, state="draining"), replace(new, state="ready")]
    moved = [replace(moving[0], sequences=0), replace(moving[1], sequences=3)]
    assert pool_changes([], []) == []
    assert pool_changes([old], [old, new]) == ["new (new:50052) is attached, connecting"]
    assert pool_changes([old, new], moving) == ["old: ready -> draining, 3 sequences move", "new: connecting -> ready"]
    assert pool_changes(moving, moved) == []
    assert pool_changes(moving, moved[1:]) == ["old is detached; more sequences at new"]
    assert pool_changes(moved, moved[1:]) == ["old is detached"]


def test_what_was_learned() -> None:
    last = LearningRound(3, False, "slower", 0.5, 0.6, 900, ended_at=STARTED)
    learning = Learning("training", 2, 9000, 3, 0.5, 0.625, last)
    before, now = drafter("good", learning=replace(learning, last_round=None)), drafter("good", learning=learning)
    assert pool_changes([before], [now]) == ["good: learned version 3 is not promoted: slower"]
    assert pool_changes([now], [now]) == []
    assert pool_changes([now], [drafter("good")]) == []
    figures = drafter_figures(ADDRESS, reading(12.0, 250, now, drafter("other")), None)
    text = shown(Snapshot(STARTED, [], figures, []))
    heading, good, other = text[-3:]
    assert heading.endswith("LEARNED")
    assert good.endswith("v2 50% -> 62%")
    assert other.endswith("-")
    assert not any("LEARNED" in line for line in shown(snapshot()))


def snapshot(*verifiers: VerifierFigures, drafters: int = 2, events: int = 3) -> Snapshot:
    made = [
        drafter(f"drafter-{index}", draft_tokens=10 * index, accepted_tokens=index * index) for index in range(drafters)
    ]
    told = [Event(STARTED, ADDRESS, f"event {index}") for index in range(events)]
    found = verifiers or (verifier_figures(ADDRESS, reading(12.0, 250), reading(10.0, 100)),)
    return Snapshot(STARTED, found, drafter_figures(ADDRESS, reading(12.0, 250, *made), None), told)


def shown(what: Snapshot, **room: Any) -> list[str]:
    return [line.plain for line in lines(what, Layout(**room))]


def test_all_columns_where_there_is_room() -> None:
    text = shown(snapshot())
    at = next(index for index, line in enumerate(text) if line.startswith("VERIFIER"))
    assert [word for word in text[at].split() if word in ("DTYPE", "UP", "PREEMPTED")] == ["DTYPE", "UP", "PREEMPTED"]
    assert text[at + 1].split()[:3] == [ADDRESS, "ready", "target"]
    assert text[at + 1].split()[-3:] == ["225", "75", "1.14x"]
    assert any(line.startswith("TIME OF STEPS") for line in text)
    assert any(line.startswith("PLANNER") and line.endswith("GAINED TOK/S") for line in text)
    assert [line.split()[0] for line in text if line.startswith("drafter-")] == ["drafter-0", "drafter-1"]
    assert [line.split("  ")[-1] for line in text[-3:]] == ["event 2", "event 1", "event 0"]


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40, 20, 5, 1])
@pytest.mark.parametrize("height", [60, 30, 20, 12, 6, 2, 1])
def test_every_size_is_kept(width: int, height: int) -> None:
    unreachable = verifier_figures("other:50051", None, None, "no answer " * 20)
    ready = verifier_figures(ADDRESS, reading(12.0, 250), reading(10.0, 100))
    for drafters in (0, 1, 9):
        text = shown(snapshot(ready, unreachable, drafters=drafters), width=width, height=height, keys=True)
        assert len(text) == height
        assert max(map(len, text)) <= width


def test_a_narrow_terminal_keeps_what_matters() -> None:
    text = shown(snapshot(), width=60, height=30)
    assert next(line for line in text if line.startswith("VERIFIER")).split() == (
        ["VERIFIER", "STATE", "RUN", "WAIT", "TOK/S", "STEPS/S", "SPEED-UP"]
    )
    assert not any("DEVICE" in line for line in text)


def test_a_low_terminal_keeps_verifiers_and_some_drafters() -> None:
    text = shown(snapshot(drafters=20), width=100, height=12, keys=True)
    assert any(line.startswith(ADDRESS) for line in text)
    assert text[-2] == "and 16 more lines"
    assert text[-1].startswith(" q ")
    assert not any(line.startswith(("PLANNER", "EVENTS")) for line in text)


def test_drafters_are_sorted() -> None:
    def names(order: str) -> list[str]:
        return [line.split()[0] for line in shown(snapshot(drafters=3), order=order) if line.startswith("drafter-")]

    assert names("age") == ["drafter-0", "drafter-1", "drafter-2"]
    assert names("acceptance") == ["drafter-2", "drafter-1", "drafter-0"]


def test_a_verifier_that_is_gone_is_told() -> None:
    gone = verifier_figures(ADDRESS, reading(12.0, 250), None, "no answer")
    text = shown(snapshot(gone, drafters=0))
    assert "1 unreachable" in text[0]
    assert text[4] == f"{ADDRESS}: no answer"
    assert not any(line.startswith(("PLANNER", "TIME OF STEPS", "no drafter")) for line in text)


def test_once(command: Command, verifier: FakeVerifier) -> None:
    done = command("top", "--once", "--interval", "0.1")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("draftwire top  ")
    assert "\x1b" not in done.out
    assert any(line.startswith("good") for line in done.out.splitlines())


def test_forced_colours_make_no_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(*_: object) -> None:
        raise Failure("it was printed")

    monkeypatch.setattr(top_command, "_print", printed)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert command("top").err == "draftwire: it was printed\n"


def test_a_terminal_without_a_cursor_gets_lines(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(*_: object) -> None:
        raise Failure("it was printed")

    monkeypatch.setattr(top_command, "_print", printed)
    monkeypatch.setattr(top_command, "Console", partial(Console, force_terminal=True, _environ={"TERM": "dumb"}))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert command("top").err == "draftwire: it was printed\n"


async def test_a_terminal_that_reports_no_size_is_drawn_on(verifier: FakeVerifier) -> None:
    ours, theirs = pty.openpty()  # 0 by 0
    with open(theirs, "w") as file:  # noqa: ASYNC230, PTH123
        async with watching((verifier.address,), 0.1) as watch:
            screen = Screen(Console(file=file, force_terminal=True, _environ={}), watch)
            asyncio.get_running_loop().call_later(0.5, screen.press, "q")
            await screen.run()
        assert b"draftwire top" in os.read(ours, 1 << 16)
    os.close(ours)


def test_once_as_json(command: Command, verifier: FakeVerifier) -> None:
    done = command("top", "--once", "--json", "--interval", "0.1")
    told = json.loads(done.out)
    (found,) = told["verifiers"]
    assert (found["address"], found["state"], found["total_slots"]) == (verifier.address, "ready", 64)
    assert found["step_costs"] == [{"rows": 8, "seconds": 0.125}]
    assert [each["name"] for each in told["drafters"]] == ["good", "bad"]


def test_one_of_two_is_not_there(command: Command, verifier: FakeVerifier) -> None:
    done = command("top", "--once", "--interval", "0.1", "--verifier", verifier.address, "--verifier", "127.0.0.1:1")
    assert done.code == 0
    assert "127.0.0.1:1: no answer" in done.out


def test_none_is_there(command: Command) -> None:
    done = command("top", "--once", "--interval", "0.1", "--verifier", "127.0.0.1:1")
    assert (done.code, done.err) == (1, "draftwire: no verifier could be reached at 127.0.0.1:1\n")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--interval", "0"), "--interval"),
        (("--interval", "nan"), "--interval"),
        (("--verifier", "http://localhost"), "http://localhost"),
    ],
)
def test_wrong_options(command: Command, arguments: tuple[str, ...], word: str) -> None:
    done = command("top", "--once", *arguments)
    assert done.code == 2
    assert word in done.err
    assert done.err.count("\n") == 1
