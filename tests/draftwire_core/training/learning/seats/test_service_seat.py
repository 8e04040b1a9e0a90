"""The seat of a draft model in two drafter services: which of them drafts, and which one is the canary."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.errors import InternalError
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.seats.seat import Seated
from draftwire_core.training.learning.seats.service_seat import ServiceSeat
from draftwire_core.training.refresh.trial import Verdict

OLD, CANARY = "old:1", "canary:2"


class Verifier:
    """A client of a verifier with these drafters, by name: their addresses and models."""

    def __init__(self, **attached: tuple[str, str]) -> None:
        self.drafters: Any = self
        self.attached = {name.replace("_", ":"): each for name, each in attached.items()}
        self.trial = False
        self.loaded: list[tuple[str, str]] = []
        self.load = SimpleNamespace(state="serving", error="")

    def list(self) -> Any:
        return [
            SimpleNamespace(name=name, address=address, state="ready", model=SimpleNamespace(model_id=model))
            for name, (address, model) in self.attached.items()
        ]

    def rollouts(self) -> Any:
        return [SimpleNamespace(new=SimpleNamespace(name=CANARY), state="running")] if self.trial else []

    def withdraw(self, name: str) -> None:
        self.trial = False
        del self.attached[name]

    def load_model(self, address: str, model: str, *, wait: bool, timeout: float) -> Any:
        self.loaded.append((address, model))
        return self.load


def find(verifier: Any, state: LearningState, canary: str = CANARY) -> Seated | None:
    return ServiceSeat(Versions(Path("/learned")), "old", canary, "base").find(verifier, state)


def test_the_named_drafter_has_the_base_at_first() -> None:
    state = LearningState("target")
    assert find(Verifier(), state) is None
    assert find(Verifier(old=(OLD, "base")), state) == Seated("old", "base", 0)
    assert (state.address, state.canary) == (OLD, CANARY)
    assert find(Verifier(old=(OLD, "base")), state, "moved:3") == Seated("old", "base", 0)
    assert state.canary == "moved:3", "another one may be given later"


def test_both_services_change_their_roles() -> None:
    state = LearningState("target", base="base", drafter="old", address=OLD, canary=CANARY, promoted=1)
    ServiceSeat(Versions(Path("/learned")), "old", CANARY, "base").promoted(state, Verdict(True, CANARY, "faster"))
    verifier = Verifier(canary_2=(CANARY, "v00001"))
    assert find(verifier, state) == Seated(CANARY, "base", 1)
    assert (state.address, state.canary) == (CANARY, OLD)
    # The verifier has restarted, and attaches the drafter of its settings.
    assert find(Verifier(old=(OLD, "base")), state) == Seated("old", "base", 0)
    assert (state.address, state.canary) == (OLD, CANARY)


@pytest.mark.parametrize("decided", [False, True])
def test_a_learner_that_was_killed_in_a_trial(decided: bool) -> None:
    """Its trial is withdrawn; if the verifier has promoted the canary already, its service gets the base again."""
    verifier = Verifier(old=(OLD, "base"), canary_2=(CANARY, "v00001"))
    verifier.trial = not decided
    if decided:
        del verifier.attached["old"]
    state = LearningState("target", base="base", drafter="old", address=OLD, canary=CANARY)
    found = find(verifier, state)
    assert found == Seated(*((CANARY, "base", 1) if decided else ("old", "base", 0)))
    assert (state.address, state.canary) == ((CANARY, OLD) if decided else (OLD, CANARY))
    seat: Any = ServiceSeat(Versions(Path("/learned")), "old", CANARY, "base")
    assert seat.put(verifier, state, found) == found.name
    assert verifier.loaded == [(state.address, "base")]
    verifier.load = SimpleNamespace(state="failed", error="no such directory")
    with pytest.raises(InternalError, match="cannot serve base: no such directory"):
        seat.put(verifier, state, found)


def test_another_verifier_drafts_with_the_service_that_took_over() -> None:
    swapped: list[tuple[str, str]] = []
    verifier: Any = Verifier(old=(OLD, "base"), canary_2=(CANARY, "v00001"))
    verifier.swap = lambda name, address, *, timeout: swapped.append((name, address))
    state = LearningState("target", base="base", drafter=CANARY, address=CANARY, canary=OLD, promoted=1)
    ServiceSeat(Versions(Path("/learned")), "old", CANARY, "base").follow(verifier, state)
    assert swapped == [("old", CANARY)]
