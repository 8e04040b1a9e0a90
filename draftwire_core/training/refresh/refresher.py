"""Continual training: follows the traffic, trains the drafter on it, and rolls out better checkpoints."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from draftwire import ServedRequest
from draftwire_core.training.refresh.learner import ExampleT, Learner, ReplaySet
from draftwire_core.training.refresh.traffic_follower import TrafficFollower
from draftwire_core.training.refresh.trial import TrialOptions, Verdict, try_out
from draftwire_core.training.teachers.verifier_teacher import VerifierTeacher
from draftwire_tools.progress import CountedLines

_KEPT_VERSIONS = 3
_RECENT = 32
"""Requests over which served acceptance is reported."""
_SHORTEST_OUTPUT = 4
"""Shortest output to learn from; shorter ones teach little."""


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """Options of the continual training."""

    requests: int = 64
    """New finished requests to collect before each training."""
    replay: int = 512
    """Most requests kept for training."""
    max_tokens: int = 1024
    """Longest request to learn from."""


@dataclass
class Standing:
    """The current drafter and checkpoint. Written after every change, so that the next start resumes from it."""

    version: int
    """Number of the last checkpoint."""
    draft: str
    """Checkpoint in use."""
    drafter: str
    """Name of the drafter that has the traffic."""
    canary: str
    """Address of the free drafter service."""


@dataclass
class Refresher(Generic[ExampleT]):
    """Runs rounds of following, training, measuring and trying out."""

    teacher: VerifierTeacher
    follower: TrafficFollower
    learner: Learner[ExampleT]
    directory: Path
    standing: Standing
    options: RefreshOptions
    trial: TrialOptions
    tell: Callable[[str], None]
    replay: ReplaySet[ExampleT] = field(init=False)
    served: deque[float] = field(init=False)
    """Accepted draft tokens per step of the latest requests."""

    def __post_init__(self) -> None:
        if self.learner.tokenizer_sha256 != self.teacher.tokenizer_sha256:
            raise ValueError(f"--draft: the tokenizer of {self.learner.source} is not the target's")
        self.replay = ReplaySet(self.options.replay)
        self.served = deque(maxlen=_RECENT)

    def run(self, rounds: int | None) -> None:
        """Runs this many rounds, or forever. Raises DraftwireError."""
        for _ in itertools.count() if rounds is None else range(rounds):
            self.follow()
            checkpoint = self.learn()
            if checkpoint is not None:
                self.roll_out(checkpoint)

    def follow(self) -> None:
        """Collects as many requests as a training needs."""
        taken = 0
        told = CountedLines(self.tell, "followed requests", self.options.requests)
        while taken < self.options.requests:
            requests = self.follower.take(1.0)
            self.see(requests)
            for request in requests:
                if taken < self.options.requests and self._is_of_use(request):
                    example = self.learner.example(request.prompt_token_ids, request.token_ids)
                    if example is not None:
                        self.replay.add(example)
                        taken += 1
                        told.advance()
        self.tell(f"followed {taken} requests; served with {self.served_acceptance:.2f} accepted draft tokens per step")

    def see(self, requests: list[ServedRequest]) -> None:
        """Counts how requests were served."""
        self.served.extend(
            request.speculation.accepted_tokens / request.speculation.steps
            for request in requests
            if request.speculation.steps
        )

    @property
    def served_acceptance(self) -> float:
        """Returns the accepted draft tokens per step of the latest requests."""
        return statistics.fmean(self.served) if self.served else 0.0

    def learn(self) -> Path | None:
        """Trains on the replay set. Returns the new checkpoint. If held-out acceptance is no better, restores the
        weights and returns None."""
        held_out, learned = list(self.replay.held_out), list(self.replay.learned)
        if not self.learner.learn(learned, held_out, self.standing.version, self.tell):
            self.tell("no better: not rolled out")
            return None
        self.standing.version += 1
        checkpoint = self.directory / f"v{self.standing.version:05d}"
        self.learner.write(checkpoint)
        return checkpoint

    def roll_out(self, checkpoint: Path) -> Verdict:
        """Tries a checkpoint on the traffic; restores the weights if it is not promoted. Raises DraftwireError."""
        standing = self.standing
        client = self.teacher.client
        address = next((each.address for each in client.drafters.list() if each.name == standing.drafter), None)
        if address is None:
            raise ValueError(f"--drafter: no drafter named {standing.drafter!r} is attached")
        self.tell(f"{checkpoint.name}: on trial at {standing.canary}")
        verdict = try_out(client, self.follower, standing.drafter, standing.canary, checkpoint, self.trial, self.see)
        if verdict.promoted:
            standing.drafter, standing.canary, standing.draft = verdict.drafter, address, str(checkpoint.resolve())
            self.tell(f"{checkpoint.name}: promoted, {verdict.reason}")
        else:
            self.learner.go_back()
            self.tell(f"{checkpoint.name}: withdrawn, {verdict.reason}")
        write_standing(self.directory, standing)
        self._forget_old_versions()
        return verdict

    def _is_of_use(self, request: ServedRequest) -> bool:
        length = len(request.prompt_token_ids) + len(request.token_ids)
        most = min(self.options.max_tokens, self.teacher.longest, self.learner.context_length)
        return len(request.token_ids) >= _SHORTEST_OUTPUT and length <= most

    def _forget_old_versions(self) -> None:
        versions = sorted(self.directory.glob("v[0-9]*"))
        for old in versions[:-_KEPT_VERSIONS]:
            if old.resolve() != Path(self.standing.draft).resolve():
                shutil.rmtree(old)


def read_standing(directory: Path) -> Standing | None:
    """Returns the standing of the last run; None if there was none. Raises ValueError for a damaged one."""
    path = directory / "standing.json"
    try:
        return Standing(**json.loads(path.read_text())) if path.exists() else None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: remove it to begin with --draft, --drafter and --canary") from error


def write_standing(directory: Path, standing: Standing) -> None:
    """Writes the standing of this run."""
    new = directory / "standing.new"
    new.write_text(json.dumps(vars(standing), indent=2) + "\n")
    new.replace(directory / "standing.json")
