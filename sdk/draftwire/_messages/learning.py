"""Messages of a learner's state."""

from __future__ import annotations

from draftwire._types.from_message import numbers_of
from draftwire._types.learning import LearnerActivity, Learning, LearningRound
from draftwire.v1 import learning_pb2 as pb


def learning_message(learning: Learning) -> pb.LearningStatus:
    """Returns the message of a state. Its time is left out, which the verifier sets."""
    activities = numbers_of(LearnerActivity, pb.LearnerActivity.DESCRIPTOR)
    return pb.LearningStatus(
        activity=activities.get(learning.activity, pb.LEARNER_ACTIVITY_UNSPECIFIED),
        version=learning.version,
        collected_tokens=learning.collected_tokens,
        rounds=learning.rounds,
        first_agreement=learning.first_agreement,
        agreement=learning.agreement,
        last_round=None if learning.last_round is None else _round_message(learning.last_round),
    )


def _round_message(last: LearningRound) -> pb.LearningRound:
    message = pb.LearningRound(
        version=last.version,
        promoted=last.promoted,
        reason=last.reason,
        agreement_before=last.agreement_before,
        agreement_after=last.agreement_after,
        held_out_tokens=last.held_out_tokens,
        accepted_per_step_before=last.accepted_per_step_before,
        accepted_per_step_after=last.accepted_per_step_after,
        speed_ratio=last.speed_ratio,
    )
    if last.ended_at is not None:
        message.ended_at.FromDatetime(last.ended_at)
    return message
