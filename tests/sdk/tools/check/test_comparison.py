"""The comparison of cases with plain decoding: it tells each output that differs, whatever way the requests ran in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from draftwire._types.speculation import NO_SPECULATION, SpeculationStats
from draftwire.cli.failure import Failure
from draftwire.errors import AtCapacityError, FieldViolation, InvalidFieldError
from draftwire_tools.check.case import Budget
from draftwire_tools.check.comparison import Comparison, Run
from draftwire_tools.check.output import Output
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import CheckRequest, check_requests

SAMPLINGS = {"greedy": {"temperature": 0.0}, "T=0.8": {"temperature": 0.8}}
STATS = replace(NO_SPECULATION, tokens=4, steps=2, draft_tokens=3, accepted_tokens=2)


async def right(request: CheckRequest) -> tuple[Output, SpeculationStats]:
    return Output((request.number, request.seed), ("a", "b"), "ab", "length", (), (("end", None),)), STATS


def wrong_at(number: int, **change: object) -> Run:
    async def run(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        output, stats = await right(request)
        return (replace(output, **change) if request.number == number else output), stats  # type: ignore[arg-type]

    return run


async def comparison(count: int = 5, **more: object) -> Comparison:
    prompts = [CheckPrompt("code", f"prompt {number}") for number in range(count)]
    made = Comparison(check_requests(prompts, 2, 1, SAMPLINGS), **more)  # type: ignore[arg-type]
    await made.run_plain(right)
    return made


@pytest.mark.parametrize("batch", [1, 3, 16])
async def test_each_output_is_compared(batch: int) -> None:
    found = await comparison()
    case = await found.compare("same", right, batch=batch)
    assert (case.compared, case.equal, case.differences, case.batch) == (10, 10, [], batch)
    assert (case.sum("tokens"), case.sum("steps"), case.draft_tokens, case.accepted_tokens) == (40, 20, 30, 20)
    assert found.plainly.sum("tokens") == 40 and found.plainly.compared == 0
    for change, what in (
        ({"token_ids": (3, 9)}, "token ids"),
        ({"text": "ax"}, "text"),
        ({"finish_reason": "stop"}, "finish reason"),
        ({"more": (("end", "a"),)}, "end"),
    ):
        case = await found.compare(what, wrong_at(3, **change), batch=batch)
        assert (case.compared, case.equal) == (10, 8)
        assert [(each.what, each.request["sampling"]) for each in case.differences] == [(what, s) for s in SAMPLINGS]
    assert [case.name for case in found.cases] == ["same", "token ids", "text", "finish reason", "end"]


async def test_a_request_that_fails_is_a_difference() -> None:
    async def fail(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        raise Failure("no answer")

    case = await (await comparison(1)).compare("failing", fail, batch=2)
    assert (case.compared, case.equal) == (2, 0)
    assert {(each.what, each.other) for each in case.differences} == {("error", "no answer")}


async def test_a_request_without_room_is_no_difference() -> None:
    """As at a verifier with --max-requests-per-peer: its refusal is no output."""

    async def full(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        if request.number == 1:
            raise AtCapacityError("no room")
        return await right(request)

    case = await (await comparison(3)).compare("16 at once", full, batch=16)
    assert (case.compared, case.equal, case.differences) == (4, 4, [])
    assert case.not_run == "2 of 6 requests not tried: no room"


async def test_groups_have_a_block_each() -> None:
    groups: list[int] = []

    @asynccontextmanager
    async def around(requests: Sequence[CheckRequest]) -> AsyncIterator[Run]:
        groups.append(len(requests))
        yield wrong_at(4, token_ids=()) if len(groups) == 5 else right
        groups.append(0)

    case = await (await comparison()).compare("groups", around=around, batch=4)
    assert groups == [4, 0, 4, 0, 2, 0]
    assert (case.compared, len(case.differences)) == (10, 2)


async def test_the_rest_of_a_resumed_output_is_compared() -> None:
    async def resumed(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        output, stats = await right(request)
        ids = output.token_ids[1:] if request.number else (99,)
        return replace(output, token_ids=ids, token_texts=("b",), text="b", resumed_at=1), stats

    case = await (await comparison(2)).compare("resumed", resumed)
    assert (case.compared, case.equal) == (4, 2)


async def test_what_is_over_or_unwanted_is_left_out() -> None:
    now = [0.0]
    found = await comparison(3, budget=Budget(100.0, 2, clock=lambda: now[0]))

    async def slow(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        now[0] += 60.0
        return await right(request)

    case = await found.compare("slow", slow)
    assert (case.compared, case.not_run) == (2, "4 of 6 requests left out: its time was over")
    assert found.over
    some = await comparison(1, wanted=["swap", "kill"])
    assert (await some.compare("swapped", right)).compared == 2
    assert (await some.compare("together", right)).compared == 0
    assert [case.name for case in some.cases] == ["swapped"]


async def test_what_the_engine_refuses_is_not_tried() -> None:
    def refusing(sampling: str, field: str = "resume_token_ids") -> Run:
        async def run(request: CheckRequest) -> tuple[Output, SpeculationStats]:
            if request.sampling == sampling:
                raise InvalidFieldError("not here", field_violations=(FieldViolation(field, "no"),))
            return await right(request)

        return run

    refused = ["sampling.logit_bias", "resume_token_ids+sampling.bad_words"]
    found = await comparison(3, refused=refused)
    case = await found.compare("resumed", refusing("greedy"), batch=2)
    assert (case.compared, case.equal, case.differences) == (3, 3, [])
    assert case.not_run == "3 of 6 requests not tried: not here (resume_token_ids: no)"
    case = await found.compare("faulty", refusing("greedy", "sampling.bad_words"))
    assert (case.compared, case.equal) == (6, 3)

    plainly = Comparison(found.requests, refused=refused)
    await plainly.run_plain(refusing("T=0.8", "sampling.logit_bias[10]"))
    assert {request.sampling for request in plainly.requests} == {"greedy"}
    [left_out] = plainly.cases
    assert left_out.name == "T=0.8" and left_out.not_run.startswith("not tried: not here")
    with pytest.raises(InvalidFieldError):
        await Comparison(found.requests).run_plain(refusing("T=0.8"))


async def test_without_equal_bits_log_probabilities_may_differ() -> None:
    def told(value: float, token: int = 0) -> Run:
        async def run(request: CheckRequest) -> tuple[Output, SpeculationStats]:
            output, stats = await right(request)
            return replace(output, token_ids=(token, 1), logprobs=(((0, value), (5, -3.0)),)), stats

        return run

    for bits, equal, gaps in ((True, 0, []), (False, 2, [0.25, 0.25])):
        found = Comparison(check_requests([CheckPrompt("code", "a")], 2, 1, SAMPLINGS), bits=bits)
        await found.run_plain(told(-1.0))
        assert (await found.compare("same", told(-1.0))).equal == 2
        assert (await found.compare("other bits", told(-1.25))).equal == equal
        assert (await found.compare("other tokens", told(-1.25, token=7))).equal == 0
        assert found.gaps == gaps
