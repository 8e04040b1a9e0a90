"""The loop of learning, with a real draft model and a stand-in for the verifier."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from draftwire.errors import (
    BusyError,
    DraftwireError,
    NotEnabledError,
    UnavailableError,
    UnsupportedDrafterError,
)
from draftwire_core.engine.drafters.lookup.shared_text_file import read_shared_texts
from draftwire_core.training.learning import learning_loop
from draftwire_core.training.learning.learning_loop import LearningLoop
from draftwire_core.training.learning.text_learner import TextLearner
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_tools.serve.learner_process import LOOKUP_TEXTS
from tests.harness.stand_ins.learning_verifier import TEXT, Learning


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


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("rollout", UnavailableError),
        ("rollout", BusyError),
        ("promote", UnavailableError),
        ("stream", UnavailableError),
        ("report_learning", UnavailableError),
    ],
)
def test_a_verifier_lost_in_a_trial_gets_the_same_checkpoint_again(
    call: str, error: type[DraftwireError], learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that is just changing its drafters."""
    decide = LearningLoop._decide

    def lose(loop: LearningLoop, *given: Any) -> Any:
        if len(tried) < 1:
            learning.verifier.errors[call] = error("lost")
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


def test_a_head_without_a_model_is_named_as_the_new_base(learning: Learning) -> None:
    learning.run()
    learning.verifier.drafting = "local:recurrent"
    with pytest.raises(ValueError, match="--target: is needed"):
        learning.run()
    assert learning.told[-1] == "another draft, local:recurrent: learning begins again"


@pytest.mark.parametrize("context", [1 << 20, 40])
def test_without_traffic_held_out_prompts_decide(context: int, learning: Learning) -> None:
    """Prompts that nearly fill the context, or that a further verifier alone could take, end no learner."""
    learning.verifier.busy, learning.verifier.context = False, context
    numbers = iter(range(3, 10_000))
    loop: LearningLoop

    def idle() -> None:
        """Own text is made here, by the caller of the loop."""
        number = next(numbers)
        loops[0].take([number % 150, 5, *[6] * (number % 7 * 8)], [*TEXT, next(numbers) % 150], "own")

    loops: list[LearningLoop] = []
    made = LearningLoop.__post_init__

    def remember(self: LearningLoop) -> None:
        loops.append(self)
        made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearningLoop, "__post_init__", remember)
        patch.setattr(learning_loop, "_MOST_ASKED", 2)  # as after months
        loop = learning.run(idle=idle)
    assert learning.state.promoted == 1
    assert len(learning.verifier.asked) >= 6
    assert len(loop._asked) == 2, "what it has asked is forgotten in time"
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
    assert learning.told[0] == "no drafter that can learn is attached: waiting for one"
    assert learning.state.promoted == 1


def test_another_tokenizer_needs_the_targets(learning: Learning) -> None:
    learning.verifier.tokenizer = "another"
    with pytest.raises(ValueError, match="--target-tokenizer: is needed"):
        learning.run()


def test_that_learning_begins_again_after_a_damaged_state_is_told(learning: Learning) -> None:
    learning.place.mkdir(exist_ok=True)
    (learning.place / "learning.json").write_text("{")
    learning.run(0)
    assert "learning.json is damaged: learning begins again" in learning.told[0]
