"""The loop of learning while serving: collect texts, train, decide by a trial, and begin again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftwire import Client, LearnerActivity, LearningRound, ServedRequest, Speculation
from draftwire.errors import (
    BusyError,
    ContextExceededError,
    DeadlineExceededError,
    DraftwireError,
    NotFoundError,
    UnavailableError,
)
from draftwire_core.engine.device.choices import QuantisedWeights
from draftwire_core.runtime.rpc.channel import Backoff
from draftwire_core.training.learning.further_verifier import FINAL, FurtherVerifier
from draftwire_core.training.learning.learners import Learners, LiveLearner
from draftwire_core.training.learning.learning_directory import DirectoryLock, LearningState, Versions
from draftwire_core.training.learning.seats.seat import Seat, Seated
from draftwire_core.training.learning.texts.draft_text import DraftText
from draftwire_core.training.learning.texts.lookup_texts import write_lookup_texts
from draftwire_core.training.learning.texts.served_text import Origin, ServedText
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from draftwire_core.training.refresh.traffic_follower import TrafficFollower
from draftwire_core.training.refresh.trial import RESTARTED, TrialOptions, Verdict, try_out

_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0
_ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 2.0
"""Interval of looks for a draft model, until there is one."""
_POLL_SECONDS = 1.0
_REPORT_SECONDS = 10.0
"""Interval of reports to the verifier while texts are collected."""
_SHORTEST_OUTPUT = 4
"""Shortest output to learn from; shorter ones teach little."""
_MOST_PROMPT = 2048
"""Tokens that are kept of a prompt."""
_ASKED_SECONDS = 600.0
_ASKED_TOKENS = 64
"""Output tokens of a request that the learner sends itself to decide a trial."""
_MOST_ASKED = 64
"""Most such prompts that are remembered: their texts come back with the next traffic."""


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """Options of the loop."""

    tokens: int = 4000
    """New output tokens to collect before each training."""
    replay_tokens: int = 65536
    """Newest output tokens that are trained on."""
    held_out_tokens: int = 4096
    """Newest held-out output tokens on which agreement is measured."""
    most_bytes: int = 32 << 20
    """Bound of the texts on disk."""
    weights: QuantisedWeights = "q8_0"
    """Type of the weights that checkpoints are served with in place of a quantised model, unless its address says."""


@dataclass(frozen=True, slots=True)
class LearnedCheckpoint:
    """A checkpoint that is better on held-out texts, until a trial decides."""

    version: int
    line: str
    """The line about it, which ends with the decision."""


class VerifierRestartedError(Exception):
    """The verifier has restarted, and drafts with what its settings say."""


@dataclass
class LearningLoop:
    """Runs rounds against one verifier, with the texts of further ones, and outlives it: a lost one is waited for."""

    client: Client
    directory: Path
    """Of texts, checkpoints and state."""
    seat: Seat
    options: LearningOptions
    learners: Learners
    trial: TrialOptions
    tell: Callable[[str], None]
    further: Sequence[FurtherVerifier] = ()
    """Verifiers of the same target, whose texts are learned from, too. Trials are held at `client`'s alone."""
    idle: Callable[[], None] | None = None
    """Is called about once a second while no request finishes and texts are collected. Text of the target's own is
    made here, and given to `take`."""
    state: LearningState = field(init=False)
    store: TextStore = field(init=False)
    _follower: TrafficFollower | None = field(init=False, default=None)
    _learner: LiveLearner | None = field(init=False, default=None)
    _candidate: LearnedCheckpoint | None = field(init=False, default=None)
    _asked: deque[list[int]] = field(init=False, default_factory=lambda: deque(maxlen=_MOST_ASKED))
    """Prompts of the last requests that the learner sent itself."""
    _questions: int = field(init=False, default=0)
    _written: int = field(init=False, default=0)
    """Output tokens that were stored when the texts for lookup were written last."""
    _reported: float = field(init=False, default=-math.inf)
    """Time of the last report to the verifier, by time.monotonic."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = DirectoryLock(self.directory)
        self.versions = Versions(self.directory)
        self.state = LearningState.read(self.directory, self.tell) or LearningState("")

    def run(self, rounds: int | None) -> None:
        """Runs this many rounds, or forever; a verifier that is lost is waited for. Called once.

        Raises DraftwireError if it refuses this caller or does not share its traffic, ModelLoadError, and ValueError,
        also if another learner uses the directory.
        """
        with self._lock:
            self._run(rounds)

    def _run(self, rounds: int | None) -> None:
        done, told = 0, False
        backoff = Backoff(_BACKOFF, _LONGEST_BACKOFF)
        while rounds is None or done < rounds:
            try:
                learner = self._connect()
                told = False
                backoff.reset()
                while rounds is None or done < rounds:
                    self._round(learner)
                    done += 1
                    self._report("collecting")
            except FINAL:
                raise
            except VerifierRestartedError:
                self.tell(RESTARTED)
            except (DraftwireError, TimeoutError) as error:
                if not told:
                    self.tell(f"verifier lost: {error}; learning goes on when it is back")
                told = True
                time.sleep(backoff.next_delay())
            finally:
                for each in self.further:
                    each.close()
                if self._follower is not None:
                    self._follower.close()
                    self._follower = None
                    self._write_lookup_texts()

    def take(self, prompt: Sequence[int], output: Sequence[int], origin: Origin, top: TopTokens | None = None) -> bool:
        """Stores a text of the target, in its tokens; returns False for one that teaches nothing new. Any thread may
        call it, once a first round has begun. top: the likeliest tokens at the positions of the output."""
        text = ServedText.of(prompt, output, origin, _MOST_PROMPT, top)
        return len(text.output) >= _SHORTEST_OUTPUT and self.store.add(text)

    def _connect(self) -> LiveLearner:
        """Begins to follow the verifier, and has the promoted checkpoint draft. Returns what learns."""
        info = self.client.model_info(timeout=_ANSWER_SECONDS)
        if self.state.target != info.fingerprint:
            if self.state.target:
                self.tell("the verifier has another target: learning begins again")
            self._begin_anew(LearningState(info.fingerprint))
        self.store = TextStore(
            self.directory / "texts", info.fingerprint, most_bytes=self.options.most_bytes, warn=self.tell
        )
        self._write_lookup_texts()  # a process that was killed has not written its last ones
        self._reported = -math.inf
        self._follower = TrafficFollower(self.client, likeliest=self.learners.training.probabilities)
        self._follower.wait_until_following(_ANSWER_SECONDS)
        seated = self._seated()
        self._settle(seated)
        if self._learner is None:
            state = self.state
            source = str(self.versions.path(state.promoted)) if state.promoted else self.seat.model(state.base)
            self._learner = self.learners.make(state.base, source, info.tokenizer_sha256, self.client)
        self.tell(f"following {self.client.address}; {self.state.drafter} drafts")
        if self.state.promoted:
            self.tell(self.state.summary())
        return self._learner

    def _seated(self) -> Seated:
        """Waits for the drafter that is to learn."""
        assert self._follower is not None
        told = False
        while (seated := self.seat.find(self.client, self.state)) is None:
            if not told:
                told = True
                self.tell("no drafter that can learn is attached: waiting for one")
            time.sleep(_LOOK_SECONDS)
            self._see(self._follower.take(0.0))  # lookup learns meanwhile
        return seated

    def _settle(self, seated: Seated) -> None:
        """Has the promoted checkpoint draft if the base does, and the other way round."""
        state = self.state
        if seated.base and state.base != seated.base:
            if state.base:
                self.tell(f"another draft, {self.seat.model(seated.base) or seated.base}: learning begins again")
            self._begin_anew(LearningState(state.target, address=state.address, canary=state.canary))
            self.state.base = seated.base
        state = self.state
        state.drafter = seated.name
        if not state.base:
            raise ValueError(
                f"{seated.name} has a learned checkpoint, and {self.directory} does not say what it was made of: "
                "attach the draft model that it began with"
            )
        if seated.version != state.promoted:
            try:
                state.drafter = self.seat.put(self.client, state, seated)
            except (UnavailableError, DeadlineExceededError, BusyError):
                raise  # it may work when the verifier is asked again
            except DraftwireError as error:
                if seated.version:
                    raise
                self.tell(f"v{state.promoted:05d} is given up, because it cannot draft: {error}")
                state.promoted, self._learner = 0, None
        self._tidy()
        self._save()

    def _round(self, learner: LiveLearner) -> None:
        if self._candidate is None:
            self._collect()
            self._candidate = self._learn(learner)
        if self._candidate is not None:
            self._decide(learner, self._candidate)

    def _collect(self) -> None:
        """Collects as many tokens as a training needs, held-out ones among them."""
        assert self._follower is not None
        while not self._has_enough():
            if time.monotonic() - self._reported >= _REPORT_SECONDS:
                self._report("collecting")
            requests = self._follower.take(_POLL_SECONDS)
            self._check_running()
            self._see([*requests, *(request for each in self.further for request in each.take(self.seat, self.state))])
            if not requests and self.idle is not None:
                self.idle()

    def _check_running(self) -> None:
        """Raises VerifierRestartedError if another process serves since the last call of `_connect`."""
        assert self._follower is not None
        if self._follower.begun > 1:
            raise VerifierRestartedError

    def _has_enough(self) -> bool:
        self.state.tokens = min(self.state.tokens, self.store.tokens)  # texts that were not written may be gone
        enough = self.store.tokens - self.state.tokens >= self.options.tokens
        return enough and all(self.store.newest(1, held_out=each) for each in (True, False))

    def _see(self, requests: Sequence[ServedRequest]) -> None:
        for request in requests:
            if request.prompt_token_ids not in self._asked:
                self.take(request.prompt_token_ids, request.token_ids, "traffic", TopTokens.served(request))
        if self.store.tokens - self._written >= self.options.tokens:
            self._write_lookup_texts()

    def _learn(self, learner: LiveLearner) -> LearnedCheckpoint | None:
        """Trains on the newest texts. Returns the checkpoint, if it is better on held-out ones."""
        self._report("training")
        state, options = self.state, self.options
        learned = self._examples(learner, options.replay_tokens, held_out=False)
        held_out = self._examples(learner, options.held_out_tokens, held_out=True)
        new, state.tokens = self.store.tokens - state.tokens, self.store.tokens
        if not learned or not held_out:
            self.tell(f"round skipped: the texts have nothing that {learner.source} can learn")
            return None
        self.tell(f"training on {len(learned)} texts, {new} new tokens")
        better = learner.learn(learned, held_out, state.version, self.tell)
        if learner.quantised:
            state.weights = self.options.weights
        state.before = learner.before if state.before is None else state.before
        state.now = learner.before
        state.version += 1
        line = (
            f"v{state.version:05d}: {new} new tokens, {state.tokens} in all; agreement on held-out texts "
            f"{100 * learner.before:.1f} % before, {100 * learner.after:.1f} % after ({learner.measured} tokens)"
        )
        if better:
            try:
                learner.write(self.versions.path(state.version))
                self._save()
                return LearnedCheckpoint(state.version, line)
            except OSError as error:  # no room, for example
                reason = f"the checkpoint cannot be written: {error}"
        else:
            reason = "it is no better"
        self._end_round(learner, LearnedCheckpoint(state.version, line), Verdict(False, state.drafter, reason))
        return None

    def _examples(self, learner: LiveLearner, tokens: int, *, held_out: bool) -> list[DraftText]:
        texts = self.store.newest(tokens, held_out=held_out)
        read = (learner.example(text.prompt.tolist(), text.output.tolist(), text.top) for text in texts)
        return [each for each in read if each is not None]

    def _decide(self, learner: LiveLearner, candidate: LearnedCheckpoint) -> Verdict:
        """Tries a checkpoint on the traffic, or on held-out prompts while there is none."""
        assert self._follower is not None
        self._report("trying")
        state = self.state
        self.tell(f"v{candidate.version:05d}: on trial")
        canary, checkpoint = self.seat.canary(state, self.versions.path(candidate.version))
        verdict = try_out(
            self.client, self._follower, state.drafter, canary, checkpoint, self.trial, self._see, self._ask
        )
        if verdict.reason == RESTARTED:  # the traffic may not have shown it yet
            raise VerifierRestartedError
        if not verdict.promoted:
            self._check_running()  # the trial then decided nothing
        if verdict.promoted:
            state.promoted, state.now = candidate.version, learner.after
            self.seat.promoted(state, verdict)
        else:
            learner.go_back()
        self._end_round(learner, candidate, verdict)
        self._tidy()
        return verdict

    def _end_round(self, learner: LiveLearner, candidate: LearnedCheckpoint, verdict: Verdict) -> None:
        """Says and notes what was decided about a version."""
        self._candidate = None
        self.tell(f"{candidate.line}; {'promoted' if verdict.promoted else 'not promoted'}: {verdict.reason}")
        before, after = verdict.accepted_per_step or (None, None)
        decided = candidate.version, verdict.promoted, verdict.reason
        learned = learner.before, learner.after, learner.measured
        self.state.last_round = LearningRound(*decided, *learned, before, after, datetime.now(UTC), verdict.speed_ratio)
        self._save()

    def _report(self, activity: LearnerActivity) -> None:
        """Shows the state of learning at the verifier, with the drafter."""
        report = self.state.report(activity, self.store.tokens)
        with suppress(NotFoundError):  # somebody may just have swapped the drafter: the next round finds the other one
            self.client.drafters.report_learning(self.state.drafter, report, timeout=_ANSWER_SECONDS)
        self._reported = time.monotonic()

    def _ask(self, old: str, new: str) -> None:
        """Has both drafters draft for a held-out prompt, if the verifier has nothing else to do."""
        engine = self.client.model_info(timeout=_ANSWER_SECONDS).engine
        texts = self.store.newest(self.options.held_out_tokens, held_out=True)
        if engine.running_sequences or engine.waiting_requests or not texts:
            return
        prompt = texts[self._questions % len(texts)].prompt.tolist()
        self._questions += 1
        self._asked.append(prompt)
        # Both draft the same text, by its seed, and a sampled one: greedy texts often loop.
        asked: dict[str, Any] = {"max_tokens": _ASKED_TOKENS, "fit_max_tokens": True, "seed": self._questions}
        with suppress(ContextExceededError):  # a further verifier may take longer prompts
            for name in (old, new):
                speculation = Speculation(drafter=name, planning="always")
                self.client.generate(prompt, **asked, speculation=speculation, timeout=_ASKED_SECONDS)

    def _write_lookup_texts(self) -> None:
        """Writes the texts that the next lookup drafter begins with."""
        self._written = self.store.tokens
        try:
            write_lookup_texts(self.directory, self.store, self.state.target)
        except OSError as error:
            self.tell(f"warning: the texts for lookup cannot be written: {error}")

    def _tidy(self) -> None:
        self.versions.tidy(self.state.promoted, 0 if self._candidate is None else self._candidate.version)

    def _begin_anew(self, state: LearningState) -> None:
        self.versions.tidy(0)
        self.state, self._learner, self._candidate = state, None, None
        self._save()

    def _save(self) -> None:
        try:
            self.state.write(self.directory)
        except OSError as error:
            self.tell(f"warning: the state of learning cannot be written: {error}")
