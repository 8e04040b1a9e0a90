"""Further verifiers of a learner: their texts, and what drafts there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.errors import (
    NotEnabledError,
    UnavailableError,
    UnsupportedDrafterError,
)
from draftwire_core.training.learning.further_verifier import FurtherVerifier
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.seats.local_seat import LocalSeat
from tests.harness.stand_ins.learning_verifier import Learning, Verifier
from tests.harness.waiting import eventually


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


def test_one_that_cannot_draft_with_it_gives_its_texts(learning: Learning) -> None:
    further: Any = Further(learning.base, learning.verifier.tokenizer)
    further.errors = {"swap": UnsupportedDrafterError("no such directory")}
    verifier, seat = FurtherVerifier(further, learning.told.append), LocalSeat(Versions(learning.place))
    state = LearningState("target", base=learning.base, promoted=1)
    eventually(lambda: bool(verifier.take(seat, state)), "it is followed")
    verifier.close()
    assert further.calls.count("swap") == 1
    assert learning.told[-1] == "further:2: cannot draft with what was learned: no such directory"


def test_the_texts_of_another_target_are_left_out(learning: Learning) -> None:
    further = Further(learning.base, learning.verifier.tokenizer)
    further.fingerprint = "other"
    learning.run(further=further)
    assert learning.told.count("further:2: has another target; its texts are left out") == 1
    assert "follow_traffic" not in further.calls
