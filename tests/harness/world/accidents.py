"""Accidents of messages in transit, and faults of the drafters that send them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from tests.harness.world.held_calls import Direction, HeldCall

BIG = 2**32 - 1


def _lie(rng: random.Random, proposal: Any) -> None:
    proposal.token_ids[:] = [rng.randrange(64) for _ in proposal.token_ids]


def _boast(rng: random.Random, proposal: Any) -> None:
    proposal.log_probs[:] = [rng.choice([0.0, -1e-9, -50.0]) for _ in proposal.token_ids]


def _wrong_log_probs(rng: random.Random, proposal: Any) -> None:
    proposal.log_probs[:] = [rng.choice([math.nan, 1.0, math.inf, -math.inf]) for _ in proposal.token_ids]


def _wrong_ids(rng: random.Random, proposal: Any) -> None:
    proposal.first_node_id = max(0, min(BIG, proposal.first_node_id + rng.choice([-1, 1, -BIG, BIG])))


def _wrong_parents(rng: random.Random, proposal: Any) -> None:
    proposal.parent_ids[:] = [rng.choice([0, 1, 2, parent, BIG]) for parent in proposal.parent_ids]


def _wrong_length(rng: random.Random, proposal: Any) -> None:
    proposal.committed_length = max(0, min(BIG, proposal.committed_length + rng.choice([-1, 1, -5, 5, BIG])))


def _wrong_epoch(rng: random.Random, proposal: Any) -> None:
    proposal.epoch = max(0, min(BIG, proposal.epoch + rng.choice([-1, 1, BIG])))


def _wrong_token(rng: random.Random, proposal: Any) -> None:
    if proposal.token_ids:
        proposal.token_ids[rng.randrange(len(proposal.token_ids))] = rng.choice([64, 199, BIG])


def _unequal(rng: random.Random, proposal: Any) -> None:
    for field in (proposal.token_ids, proposal.parent_ids, proposal.log_probs):
        if field and rng.random() < 0.5:
            del field[-1]


def _flood(rng: random.Random, proposal: Any) -> None:
    first = proposal.first_node_id
    proposal.token_ids[:] = [rng.randrange(64) for _ in range(200)]
    proposal.parent_ids[:] = [0, *range(first, first + 199)]
    del proposal.log_probs[:]


LIES: dict[str, Callable[[random.Random, Any], None]] = {
    "other tokens": _lie,
    "other log probabilities": _boast,
    "impossible log probabilities": _wrong_log_probs,
    "wrong node ids": _wrong_ids,
    "wrong parents": _wrong_parents,
    "wrong committed length": _wrong_length,
    "wrong epoch": _wrong_epoch,
    "token out of range": _wrong_token,
    "lists of unequal length": _unequal,
    "more nodes than the credit": _flood,
}
"""Faults of a proposal, by name."""


def lie(call: HeldCall, kind: str, rng: random.Random) -> bool:
    """Spoils the first proposal on its way to the verifier; returns False if there is none."""
    for index in range(call.held("down")):
        message = call.message("down", index)
        if message.WhichOneof("message") == "proposals" and message.proposals.proposals:
            LIES[kind](rng, rng.choice(message.proposals.proposals))
            call.replace("down", index, [message])
            return True
    return False


def mislead(call: HeldCall, rng: random.Random) -> bool:
    """Spoils the first verdict on its way to the drafter; returns False if there is none."""
    for index in range(call.held("up")):
        message = call.message("up", index)
        if message.WhichOneof("message") == "verdicts":
            verdict = rng.choice(message.verdicts.verdicts)
            if rng.random() < 0.5:
                verdict.token_ids[-1] = rng.randrange(64)
            else:
                verdict.committed_length = max(0, verdict.committed_length + rng.choice([-1, 1]))
            call.replace("up", index, [message])
            return True
    return False


def duplicate(call: HeldCall, direction: Direction, index: int) -> None:
    """Makes a message arrive twice."""
    message = call.message(direction, index)
    call.replace(direction, index, [message, message])


def lose(call: HeldCall, direction: Direction, index: int) -> None:
    """Makes a message never arrive."""
    call.replace(direction, index, [])
