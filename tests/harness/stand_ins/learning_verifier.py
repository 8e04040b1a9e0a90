"""A stand-in for a verifier whose drafts a learner improves, and a learner on its traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftwire import Learning as Report
from draftwire import ServedRequest, SpeculationStats, StepCost, Traffic
from draftwire.errors import (
    ContextExceededError,
    DraftwireError,
    RolloutNotFoundError,
)
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.further_verifier import FurtherVerifier
from draftwire_core.training.learning.learners import Learners
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.learning_loop import LearningLoop, LearningOptions
from draftwire_core.training.learning.seats.local_seat import LocalSeat
from draftwire_core.training.learning.text_learner import TextTraining
from draftwire_core.training.refresh.trial import TrialOptions

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
        self.context = 1 << 20
        """Tokens of the longest request that the learner may send."""
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

    def generate(
        self, prompt: list[int], *, max_tokens: int, speculation: Any, fit_max_tokens: bool = False, **_: Any
    ) -> None:
        if len(prompt) + (1 if fit_max_tokens else max_tokens) > self.context:
            raise ContextExceededError("too long")
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
            Learners(self.training), TrialOptions(0.5, 3, 20.0), self.told.append, idle=idle, further=others,
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
