"""The loop of learning, with a real draft model and a stand-in for the verifier."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire import Learning as Report
from draftwire import ServedRequest, SpeculationStats, StepCost, Traffic
from draftwire.errors import (
    DraftwireError,
    NotEnabledError,
    RolloutNotFoundError,
    UnavailableError,
    UnsupportedDrafterError,
)
from draftwire_core.engine.drafters.lookup.shared_text_file import read_shared_texts
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning import further_verifier, learning_loop
from draftwire_core.training.learning.further_verifier import FurtherVerifier
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.learning_loop import LearningLoop, LearningOptions
from draftwire_core.training.learning.seats.local_seat import LocalSeat
from draftwire_core.training.learning.text_learner import TextLearner, TextTraining
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_core.training.refresh.trial import TrialOptions
from draftwire_tools.serve.learner_process import LOOKUP_TEXTS
from tests.harness.waiting import eventually

TEXT = [10, 11, 12, 13, 14, 15]


class Verifier:
    """A client of a verifier that serves the same texts again and again, while `busy`."""

    address = "verifier:1"

    def __init__(self, base: str, tokenizer: str, gain: int = 2) -> None:
        """gain: draft tokens that are accepted if a new drafter drafts, against 1 of the old one."""
        self.drafters = self
        self.base = self.drafting = base
        self.new = ""
        self.fingerprint, self.tokenizer, self.gain = "target", tokenizer, gain
        self.busy, self.restarted = True, False
        self.likeliest = False
        """Whether the learner asks for the likeliest tokens."""
        self.forgets = False
        """Whether it restarts after the next rollout has begun."""
        self.errors: dict[str, DraftwireError] = {}
        """The errors of the next calls, by their names."""
        self.calls: list[str] = []
        self.asked: list[str] = []
        self.reports: list[Report] = []
        self._count = self._answers = 0
        self._waiting: list[ServedRequest] = []

    def model_info(self, *, timeout: float = 0.0) -> Any:
        self._call("model_info")
        planner = SimpleNamespace(step_costs=[StepCost(1, 0.01)], steps=0, sequences=0)
        engine = SimpleNamespace(running_sequences=0, waiting_requests=0, planner=planner)
        return SimpleNamespace(fingerprint=self.fingerprint, tokenizer_sha256=self.tokenizer, engine=engine)

    def follow_traffic(self, *, likeliest: bool) -> Any:
        self._call("follow_traffic")
        self.likeliest = likeliest
        return Stream(self)

    def generate(self, prompt: list[int], *, speculation: Any, **_: Any) -> None:
        self.asked.append(speculation.drafter)
        self._waiting.append(self._served(prompt, speculation.drafter))

    def report_learning(self, name: str, learning: Report, *, timeout: float) -> None:
        self._call("report_learning")
        assert name == self.drafting
        self.reports.append(learning)

    def list(self) -> list[Any]:
        found = [self.drafting] if self.drafting else []
        return [SimpleNamespace(name=each, address=each, state="ready") for each in ("local:ngram", *found)]

    def rollouts(self) -> list[Any]:
        old, new = (SimpleNamespace(name=each, drafting_per_step=0.001) for each in (self.drafting, self.new))
        return [SimpleNamespace(old=old, new=new, state="running")] if self.new else []

    def rollout(self, old: str, new: str, share: float, *, timeout: float) -> Any:
        self._call("rollout")
        assert old == self.drafting
        self.new, self.forgets = "" if self.forgets else new, False
        return SimpleNamespace(new=SimpleNamespace(name=new))

    def promote(self, new: str) -> None:
        self._call("promote")
        self.drafting, self.new = new, ""

    def withdraw(self, new: str) -> None:
        self._call("withdraw")
        if new != self.new:
            raise RolloutNotFoundError("none")
        self.new = ""

    def swap(self, old: str, new: str, *, timeout: float) -> Any:
        self._call("swap")
        assert old == self.drafting
        self.drafting = new
        return SimpleNamespace(drafter=SimpleNamespace(name=new))

    def next(self) -> list[ServedRequest]:
        found, self._waiting = self._waiting, []
        if not found and self.busy:
            self._count += 1
            side = self.new if self.new and self._count % 2 else self.drafting
            found = [self._served([3 + self._count % 97, 5], side)]
        return found

    def _served(self, prompt: list[int], drafter: str) -> ServedRequest:
        self._answers += 1
        accepted = self.gain if drafter == self.new else 1
        stats = SpeculationStats(10, 20, 30, accepted, 0, [])
        served = ServedRequest(prompt, [*TEXT, 20 + self._answers % 80], stats, ["local:ngram", drafter])
        if not self.likeliest:
            return served
        tops = [each for token in served.token_ids for each in (token, 3)]
        return replace(served, top=2, top_token_ids=tops, top_log_probs=[-0.1, -3.0] * len(served.token_ids))

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            raise self.errors.pop(name)


class Stream:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier, self._closed = verifier, False

    def __iter__(self) -> Iterator[Traffic]:
        yield Traffic([], 0)
        while not self._closed:
            time.sleep(0.002)
            if "stream" in self._verifier.errors:
                raise self._verifier.errors.pop("stream")
            if self._verifier.restarted:
                self._verifier.restarted = False
                yield Traffic([], 0)
            if requests := self._verifier.next():
                yield Traffic(requests, 0)

    def close(self) -> None:
        self._closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BACKOFF", "_LOOK_SECONDS", "_POLL_SECONDS"):
        monkeypatch.setattr(learning_loop, name, 0.02)
    monkeypatch.setattr(further_verifier, "_BACKOFF", 0.02)


class Learning:
    """A verifier, and loops on its traffic in one directory."""

    def __init__(self, draft: Path, place: Path) -> None:
        self.draft, self.place = draft, place
        self.base = f"local:draft?model={draft}&kv_slots=512"
        self.verifier = Verifier(self.base, Tokenizer.load(str(draft)).sha256)
        self.told: list[str] = []
        self.training = TextTraining(steps=8, epochs=50, step_tokens=64, learning_rate=1e-2)

    def run(self, rounds: int = 1, *, idle: Any = None, further: Any = None) -> LearningLoop:
        client: Any = self.verifier
        others = [] if further is None else [FurtherVerifier(further, self.told.append)]
        loop = LearningLoop(
            client, self.place, LocalSeat(Versions(self.place)), LearningOptions(tokens=150, replay_tokens=300),
            self.training, TrialOptions(0.5, 3, 20.0), self.told.append, idle=idle, further=others,
        )  # fmt: skip
        loop.run(rounds)
        return loop

    @property
    def state(self) -> LearningState:
        found = LearningState.read(self.place)
        assert found is not None
        return found

    @property
    def versions(self) -> list[str]:
        return sorted(each.name for each in self.place.glob("v*"))


@pytest.fixture
def learning(draft: Path, tmp_path: Path) -> Learning:
    return Learning(draft, tmp_path / "learned")


def test_a_better_checkpoint_takes_over(learning: Learning) -> None:
    learning.run()
    address = f"local:draft?model={learning.place}/v00001&kv_slots=512"
    assert learning.verifier.drafting == address
    assert learning.told[-1].startswith("v00001: ")
    assert "; promoted: 1.091 times as fast by cost" in learning.told[-1]
    state = learning.state
    assert (state.version, state.promoted, state.drafter, state.base) == (1, 1, address, learning.base)
    assert (state.before or 0) < (state.now or 0)
    assert state.tokens >= 150
    reports = learning.verifier.reports
    told = [each.activity for each in reports]
    assert [each for each, _ in groupby(told)] == ["collecting", "training", "trying", "collecting"]
    assert (reports[0].version, reports[0].rounds, reports[0].agreement, reports[0].last_round) == (0, 0, None, None)
    last = reports[-1].last_round
    assert last is not None
    assert (reports[-1].version, reports[-1].rounds, last.version, last.promoted) == (1, 1, 1, True)
    assert (reports[-1].first_agreement, reports[-1].agreement) == (state.before, state.now)
    assert (last.agreement_before, last.agreement_after) == (state.before, state.now)
    assert (last.accepted_per_step_before, last.accepted_per_step_after) == pytest.approx((0.1, 0.2))
    assert last.speed_ratio == pytest.approx(1.2 / 1.1)
    assert reports[-1].collected_tokens >= state.tokens
    assert last.reason in learning.told[-1]
    learning.run(2)
    assert len(learning.versions) <= 2
    assert learning.state.base == learning.base


def test_probabilities_are_collected_and_learned_if_it_asks_for_them(
    learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of before are learned without, and those that have them, too, once nobody asks for them."""
    learn, given = TextLearner.learn, []

    def seen(self: TextLearner, learned: Any, *others: Any) -> bool:
        given.append({text.top.top for text in learned})
        return learn(self, learned, *others)

    monkeypatch.setattr(TextLearner, "learn", seen)
    learning.run()
    learning.training = replace(learning.training, probabilities=True)
    loop = learning.run(2)  # the first one has texts of the trial before
    assert {text.top.top for text in loop.store.texts()} == {0, 2}
    learning.training = replace(learning.training, probabilities=False)
    learning.run()
    assert given[0] == {0}
    assert 2 in given[2]
    assert given[3] == {0}


class Further(Verifier):
    """Another verifier, whose drafter has a name of its own, as one that was attached by name."""

    address = "further:2"

    def list(self) -> list[Any]:
        return [SimpleNamespace(name="mine", address=self.drafting, state="ready")]

    def swap(self, old: str, new: str, *, timeout: float) -> Any:
        assert old == "mine"
        return super().swap(self.drafting, new, timeout=timeout)


def test_a_further_verifier_gives_its_texts_and_drafts_with_what_takes_over(learning: Learning) -> None:
    further = Further(learning.base, learning.verifier.tokenizer)
    learning.verifier.busy = False  # a trial is decided by the learner's own requests
    learning.run(further=further)
    assert learning.state.promoted == 1
    assert further.drafting == learning.base, "the round ended before it was asked again"
    learning.run(further=further)
    assert further.drafting == f"local:draft?model={learning.place}/v00001&kv_slots=512"
    assert further.calls.count("rollout") == 0
    assert learning.told.count("following further:2, too") == 2


def test_a_further_verifier_that_is_lost_or_restarts_is_asked_again(learning: Learning) -> None:
    further: Any = Further(learning.base, learning.verifier.tokenizer)
    further.errors = {"model_info": UnavailableError("gone"), "swap": UnavailableError("gone again")}
    verifier, seat = FurtherVerifier(further, learning.told.append), LocalSeat(Versions(learning.place))
    state = LearningState("target", base=learning.base, promoted=1)

    def serves() -> bool:
        return bool(verifier.take(seat, state))

    eventually(serves, "it is followed again")
    said = [each.partition("lost: ")[2].partition(";")[0] for each in learning.told if "lost" in each]
    assert said == ["gone", "gone again"]
    learned = further.drafting
    assert learned.startswith(f"local:draft?model={learning.place}/v00001")
    further.drafting, further.restarted = learning.base, True
    eventually(lambda: serves() and further.drafting == learned, "it drafts with it again")
    further.errors, further.restarted = {"follow_traffic": NotEnabledError("no traffic")}, True
    with pytest.raises(NotEnabledError, match="no traffic"):
        eventually(lambda: serves() and not further.errors, "it is refused")
    verifier.close()


def test_the_texts_of_another_target_are_left_out(learning: Learning) -> None:
    further = Further(learning.base, learning.verifier.tokenizer)
    further.fingerprint = "other"
    learning.run(further=further)
    assert learning.told.count("further:2: has another target; its texts are left out") == 1
    assert "follow_traffic" not in further.calls


def lookup_texts(learning: Learning) -> list[list[int]]:
    return read_shared_texts(learning.place / LOOKUP_TEXTS, learning.verifier.fingerprint, 1 << 20)


def test_lookup_texts_are_written_now_and_then_and_at_the_end(
    learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, found = LearningLoop._learn, []

    def stop(loop: LearningLoop, learner: Any) -> Any:
        found.append(sum(len(text) - 2 for text in lookup_texts(learning)))
        if loop.store.tokens > 400:
            raise KeyboardInterrupt
        return learn(loop, learner)

    monkeypatch.setattr(LearningLoop, "_learn", stop)
    with pytest.raises(KeyboardInterrupt):
        learning.run(9)
    assert found[0] >= 150, "after a round's tokens"
    texts = lookup_texts(learning)
    assert sum(len(text) - 2 for text in texts) == TextStore(
        learning.place / "texts", learning.verifier.fingerprint, most_bytes=1 << 20, warn=pytest.fail
    ).tokens, "all, at the end"  # fmt: skip
    assert texts[0][2:8] == TEXT
    (learning.place / LOOKUP_TEXTS).unlink()
    with pytest.raises(KeyboardInterrupt):
        learning.run()
    assert len(lookup_texts(learning)) >= len(texts), "those of a killed learner are written at the next start"


def test_lookup_learns_without_a_draft_model(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    learning.verifier.drafting, slept = "", time.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if seconds == learning_loop._LOOK_SECONDS and lookup_texts(learning):
            raise KeyboardInterrupt

    monkeypatch.setattr(learning_loop.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        learning.run()
    assert lookup_texts(learning)[0][2:8] == TEXT


def test_one_that_is_accepted_less_is_withdrawn(learning: Learning) -> None:
    learning.verifier.gain = 0
    loop = learning.run()
    assert "; not promoted: 0.909 times as fast by cost" in learning.told[-1]
    assert learning.verifier.drafting == learning.base
    assert not learning.versions
    assert (learning.state.version, learning.state.promoted) == (1, 0)
    assert loop._learner is not None
    assert loop._learner.source == str(learning.draft)


def test_one_that_is_no_better_on_held_out_texts_is_not_tried(learning: Learning) -> None:
    learning.training = replace(learning.training, learning_rate=0.0)
    learning.run()
    assert learning.told[-1].endswith("not promoted: it is no better")
    last = learning.verifier.reports[-1].last_round
    assert last is not None
    assert (last.promoted, last.reason, last.accepted_per_step_after) == (False, "it is no better", None)
    assert "rollout" not in learning.verifier.calls


@pytest.mark.parametrize("call", ["rollout", "promote", "stream", "report_learning"])
def test_a_verifier_lost_in_a_trial_gets_the_same_checkpoint_again(
    call: str, learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = LearningLoop._decide

    def lose(loop: LearningLoop, *given: Any) -> Any:
        if len(tried) < 1:
            learning.verifier.errors[call] = UnavailableError("lost")
        tried.append(given)
        return decide(loop, *given)

    tried: list[Any] = []
    monkeypatch.setattr(LearningLoop, "_decide", lose)
    learning.run()
    assert len(tried) == 2
    assert sum(line.startswith("step") for line in learning.told) == 1, "it was trained once"
    assert sum("verifier lost: lost" in line for line in learning.told) == 1
    assert learning.state.promoted == 1


def test_a_verifier_that_is_away_is_waited_for(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, tries = LearningLoop._connect, iter(range(3))

    def lose(loop: LearningLoop) -> Any:
        if next(tries, None) is not None:
            raise UnavailableError("away")
        return connect(loop)

    monkeypatch.setattr(LearningLoop, "_connect", lose)
    learning.run()
    assert sum("verifier lost: away" in line for line in learning.told) == 1, "it is told once"
    assert learning.state.promoted == 1


def test_a_verifier_that_restarts_at_once_is_noticed(learning: Learning) -> None:
    """The client's own stream goes on, as if nothing had happened."""
    learning.run()
    promoted, learning.verifier.busy, learning.verifier.gain = learning.verifier.drafting, False, 0
    shutil.rmtree(learning.place / "texts")  # those of the trial would be enough for another round

    def restart() -> None:
        if not learning.verifier.calls.count("swap"):
            learning.verifier.drafting, learning.verifier.restarted = learning.base, True
        else:
            learning.verifier.busy = True

    learning.run(idle=restart)
    assert "the verifier has restarted" in learning.told
    assert learning.verifier.drafting == promoted


def test_one_that_restarts_in_a_trial_gets_the_same_checkpoint_again(
    learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = LearningLoop._decide

    def restart(loop: LearningLoop, *given: Any) -> Any:
        tried.append(given)
        if len(tried) == 1:
            learning.verifier.forgets = learning.verifier.restarted = True
        return decide(loop, *given)

    tried: list[Any] = []
    monkeypatch.setattr(LearningLoop, "_decide", restart)
    learning.run()
    assert len(tried) == 2
    assert learning.state.promoted == 1


def test_what_it_cannot_wait_for_is_raised(learning: Learning) -> None:
    learning.verifier.errors["stream"] = NotEnabledError("start the verifier with --share-traffic")
    learning.verifier.busy = False
    with pytest.raises(NotEnabledError):
        learning.run()


def test_after_a_restart_the_promoted_one_is_swapped_in(learning: Learning) -> None:
    learning.run()
    promoted = learning.verifier.drafting
    learning.verifier.drafting = learning.base
    learning.verifier.new = f"local:draft?model={learning.place}/v00009"  # a killed learner was trying it
    learning.verifier.gain = 0
    learning.run()
    assert learning.verifier.drafting == promoted
    assert learning.verifier.calls.count("swap") == 1
    state = learning.state
    assert state.promoted == 1
    first = 100 * (state.before or 0)
    assert any(
        f"v00001 drafts, as learned before; agreement on held-out texts {first:.1f} % at first, " in line
        for line in learning.told
    )


def test_a_promoted_one_that_is_gone_leaves_the_base(learning: Learning) -> None:
    learning.run()
    shutil.rmtree(learning.place / "v00001")
    learning.verifier.drafting, learning.verifier.gain = learning.base, 0
    learning.verifier.errors["swap"] = UnsupportedDrafterError("no such directory")
    learning.run()
    assert any("v00001 is given up" in line for line in learning.told)
    assert learning.verifier.drafting == learning.base


@pytest.mark.parametrize("what", ["target", "base"])
def test_another_target_or_base_begins_again(what: str, learning: Learning, target: Path) -> None:
    learning.run()
    learning.verifier.drafting, learning.verifier.gain = learning.base, 0
    if what == "target":
        learning.verifier.fingerprint = "other"
    else:
        learning.verifier.drafting = f"local:draft?model={target}"
    learning.run()
    assert any("begins again" in line for line in learning.told)
    assert (learning.state.version, learning.state.promoted) == (1, 0)
    assert not learning.versions


def test_without_traffic_held_out_prompts_decide(learning: Learning) -> None:
    learning.verifier.busy = False
    numbers = iter(range(3, 10_000))
    loop: LearningLoop

    def idle() -> None:
        """Own text is made here, by the caller of the loop."""
        loops[0].take([next(numbers) % 150, 5], [*TEXT, next(numbers) % 150], "own")

    loops: list[LearningLoop] = []
    made = LearningLoop.__post_init__

    def remember(self: LearningLoop) -> None:
        loops.append(self)
        made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearningLoop, "__post_init__", remember)
        loop = learning.run(idle=idle)
    assert learning.state.promoted == 1
    assert len(learning.verifier.asked) >= 6
    assert set(learning.verifier.asked) == {learning.base, learning.verifier.drafting}
    assert all(text.origin == "own" for text in loop.store.newest(1 << 30, held_out=True)), "answers are not learned"


def test_it_waits_for_a_draft_model(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    learning.verifier.drafting = ""
    slept = time.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if seconds == learning_loop._LOOK_SECONDS:
            learning.verifier.drafting = learning.base

    monkeypatch.setattr(learning_loop.time, "sleep", sleep)
    learning.run()
    assert learning.told[0] == "no draft model is attached: waiting for one"
    assert learning.state.promoted == 1


def test_another_tokenizer_needs_the_targets(learning: Learning) -> None:
    learning.verifier.tokenizer = "another"
    with pytest.raises(ValueError, match="--target-tokenizer: is needed"):
        learning.run()
