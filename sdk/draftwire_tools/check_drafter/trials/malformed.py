"""Malformed openings and verdicts: the error names the field."""

from __future__ import annotations

import math
from typing import Any

from draftwire.v1 import sampling_pb2
from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.messages import opening
from draftwire_tools.check_drafter.received import Fault
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.verdicts import send_verdict

MALFORMED = Trials()


def names(fault: Fault, field: str, reasons: tuple[str, ...] = ("INVALID_FIELD",)) -> None:
    """Raises Breach if a fault has another reason or names another field."""
    if fault.reason not in reasons:
        raise Breach(f"expected {' or '.join(reasons)}, got {fault.text}")
    if not any(each.partition("[")[0].startswith(field) for each in fault.fields):
        raise Breach(f"expected BadRequest to name {field}, got {list(fault.fields)}")


async def _opening(
    drafter: DrafterUnderTest, field: str, reasons: tuple[str, ...] = ("INVALID_FIELD",), **changes: Any
) -> None:
    async with drafter.verifier() as side:
        fields = {"token_ids": drafter.prompt()} | changes
        message = opening(1, drafter.prompt(), **{k: v for k, v in fields.items() if k != "token_ids"})
        message.token_ids[:] = fields["token_ids"]
        await side.offer(message)
        fault = await side.refusal(1)
        if fault is None:
            raise Breach(f"takes the opening; expected a SequenceError that names {field}")
        names(fault, field, reasons)
        await side.open(2, drafter.prompt(), epoch=2)
        await side.opened(2)


@MALFORMED.of("malformed.committed_length")
async def no_tokens(drafter: DrafterUnderTest) -> None:
    """No committed token, from which a tree could grow."""
    await _opening(drafter, "committed_length", committed_length=0, token_ids=[])


@MALFORMED.of("malformed.max_length")
async def too_short(drafter: DrafterUnderTest) -> None:
    """max_length below the committed length."""
    await _opening(drafter, "max_length", max_length=5)


@MALFORMED.of("malformed.max_tree_nodes")
async def no_credit(drafter: DrafterUnderTest) -> None:
    """A credit of 0."""
    await _opening(drafter, "max_tree_nodes", max_tree_nodes=0)


@MALFORMED.of("malformed.token_ids")
async def too_many_tokens(drafter: DrafterUnderTest) -> None:
    """More tokens than committed_length."""
    await _opening(drafter, "token_ids", committed_length=5)


@MALFORMED.of("malformed.token_id")
async def unknown_token(drafter: DrafterUnderTest) -> None:
    """An id at the end of a prompt that the drafter lacks."""
    size = drafter.hello.model.vocab_size
    if not size:
        raise Skip("its hello names no vocab_size")
    prompt = drafter.prompt()
    await _opening(drafter, "token_ids", ("TOKEN_OUT_OF_RANGE", "INVALID_FIELD"), token_ids=[*prompt[:-1], size])


@MALFORMED.of("malformed.offset")
async def a_gap(drafter: DrafterUnderTest) -> None:
    """A second chunk that does not follow the first."""
    prompt = drafter.prompt()
    async with drafter.verifier() as side:
        message = opening(1, prompt)
        await side.send_chunks(message, 7, 0, 7)
        await side.send_chunks(message, 7, 14, len(prompt))
        await side.reads(lambda: side.faults or side.confirmed, drafter.patience.draft)
        await side.settle()
        fault = side.fault(1) if side.faults else None
        if fault is None:
            raise Breach("takes the chunks; expected a SequenceError that names offset")
        names(fault, "offset")


@MALFORMED.of("malformed.sampling")
async def unreadable_sampling(drafter: DrafterUnderTest) -> str | None:
    """Sampling parameters out of range. A drafter that uses none of them may take them."""
    taken = []
    for field, sampling in (
        ("temperature", sampling_pb2.SamplingParams(temperature=-1.0, seed=7)),
        ("temperature", sampling_pb2.SamplingParams(temperature=math.nan, seed=7)),
        ("top_p", sampling_pb2.SamplingParams(top_p=1.5, seed=7)),
        ("seed", sampling_pb2.SamplingParams(temperature=1.0)),
    ):
        async with drafter.verifier() as side:
            await side.offer(opening(1, drafter.prompt(), sampling=sampling))
            fault = await side.refusal(1)
        if fault is None:
            taken.append(field)
        else:
            names(fault, f"sampling.{field}")
    if len(taken) == 4:
        raise Skip("takes any: it does not draft by them")
    return f"takes any {', '.join(taken)}" if taken else None


@MALFORMED.of("malformed.verdict")
async def beyond_the_end(drafter: DrafterUnderTest) -> None:
    """A verdict beyond max_length."""
    prompt = drafter.prompt()
    async with drafter.drafting(max_length=len(prompt) + 1) as side:
        await send_verdict(side, 1, 1, len(prompt) + 3, prompt[:3])
        await side.settle()
        if (1, 1) not in side.faults:
            raise Breach("takes the verdict; expected a SequenceError that names committed_length")
        names(side.fault(1), "committed_length")
