"""Answers of scripted drafters."""

import math
from collections.abc import Sequence
from typing import Any

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.drafter_service_pb2 import DraftResponse, ModelReplaced, OpenSequence, SequenceOpened
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_verifier import PROMPT
from tests.harness.stand_ins.scripted_drafter import Answer, Opening, batch, hello


def replaced(model: str = "newer") -> DraftResponse:
    return DraftResponse(replaced=ModelReplaced(model=ModelInfo(model_id=model)))


def greeting(model: str, **changes: Any) -> DraftResponse:
    return hello(model=ModelInfo(model_id=model, vocab_size=200, **changes))


def opened(opening: OpenSequence) -> DraftResponse:
    """Returns the response of a drafter that answers an opening late."""
    return DraftResponse(opened=SequenceOpened(sequence_id=opening.sequence_id, epoch=opening.epoch))


def changed(**changes: Any) -> Answer:
    """Returns an answer that proposes with one fault, at the opening and after every verdict."""
    return lambda opening: [batch(opening.proposal(**({"token_ids": (3, 4)} | changes)))]


def again(opening: Opening) -> Sequence[pb.DraftResponse]:
    proposal = opening.proposal((3,))
    return [batch(proposal), batch(proposal)]


def twice_in_one_batch(opening: Opening) -> Sequence[pb.DraftResponse]:
    proposal = opening.proposal((3,))
    return [batch(proposal, proposal)]


MALFORMED: dict[str, Answer] = {
    "no nodes": changed(token_ids=[], parent_ids=[]),
    "too few parents": changed(parent_ids=[0]),
    "too many parents": changed(parent_ids=[0, 1, 2]),
    "too few log probabilities": changed(log_probs=[-0.5]),
    "a probability above 1": changed(log_probs=[-0.5, 0.1]),
    "a probability that is no number": changed(log_probs=[math.nan, -0.5]),
    "ids that begin at 0": changed(first_node_id=0),
    "ids that skip some": changed(first_node_id=2),
    "a parent that was never sent": changed(parent_ids=[0, 7]),
    "a parent that comes later": changed(parent_ids=[2, 0]),
    "its own parent": changed(parent_ids=[1, 1]),
    "a token beyond the vocabulary": changed(token_ids=[3, 200]),
    "a token far beyond": changed(token_ids=[3, 2**32 - 1]),
    "tokens that are not committed": changed(committed_length=len(PROMPT) + 200),
    "the largest committed length": changed(committed_length=2**32 - 1),
    "the same proposal again": again,
    "the same proposal twice in a message": twice_in_one_batch,
}


def fault(error: ServiceError) -> Answer:
    """Returns an answer by which the drafter gives up a sequence."""
    return lambda opening: [
        pb.DraftResponse(
            sequence_error=pb.SequenceError(
                sequence_id=opening.sequence_id, epoch=opening.epoch, status=error.to_status()
            )
        )
    ]


def wrong_batch(opening: Any, wrong: list[int]) -> Any:
    from tests.harness.stand_ins.scripted_drafter import batch

    return batch(opening.proposal(wrong[len(opening.tokens) : len(opening.tokens) + 1] or [3]))
