"""The place of the draft model that learns: in the verifier, or in a pair of drafter services."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftwire import Client
from draftwire_core.training.learning.learning_directory import LearningState
from draftwire_core.training.refresh.trial import Verdict


@dataclass(frozen=True, slots=True)
class Seated:
    """The drafter that is to learn, as it is attached."""

    name: str
    base: str
    """The address or checkpoint of the base, see `LearningState.base`; empty if it is not known, because a learned
    checkpoint drafts."""
    version: int
    """Number of the learned checkpoint that drafts; 0 for a base."""


class Seat(Protocol):
    """The place where the drafts run. All methods raise DraftwireError."""

    def find(self, client: Client, state: LearningState) -> Seated | None:
        """Returns the drafter; None if there is none yet. Ends a trial that a killed process has left."""

    def put(self, client: Client, state: LearningState, seated: Seated) -> str:
        """Has the promoted checkpoint draft, or the base if there is none; returns the drafter's name."""

    def follow(self, client: Client, state: LearningState) -> None:
        """Has another verifier, whose client this is, draft with what the learner's own one drafts with."""

    def model(self, base: str) -> str:
        """Returns the directory, GGUF file or hub id of a base."""

    def canary(self, state: LearningState, checkpoint: Path) -> tuple[str, Path | None]:
        """Returns the last two arguments of a trial; see `trial.try_out`."""

    def promoted(self, state: LearningState, verdict: Verdict) -> None:
        """Notes in the state that a canary took over."""
