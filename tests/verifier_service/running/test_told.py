"""Log-probabilities and texts of tokens: the same bits whichever drafter drafts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import Prediction, SpeculationOptions
from draftwire.v1.token_log_probs_pb2 import TokenLogProbs
from draftwire_core.engine.engine.step_result import StepResult
from draftwire_core.engine.sampling.log_probs import LogProbs
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    PROMPT,
    TOKENS,
    InProcessVerifier,
    Output,
    greedy,
    order,
    sampled,
)
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_caller import ScriptedCaller, knowing
from tests.harness.verifier.call_context import ONE
from tests.harness.verifier.running import failure
from tests.harness.verifier.verify_call import call
from verifier_service.servicer import VerifierServicer

ASKED: dict[str, Any] = {"log_probs": 5, "prompt_log_probs": 3, "echo": True}
REPEATED = PROMPT * 8
SPECULATIONS = ["a draft model", "n-grams and a draft model", "a swap in the middle", "the caller"]


def told(output: Output) -> Any:
    """Returns everything that depends on the tokens alone, bit for bit."""
    return (
        output.token_ids,
        output.text,
        output.text_offsets,
        [each.SerializeToString(deterministic=True) for each in output.log_probs],
        [each.SerializeToString(deterministic=True) for each in output.prompts],
        output.finished.finish_reason,
        output.finished.stop_token_id,
    )


@asynccontextmanager
async def speculating(
    kind: str, services: Services, verifier: InProcessVerifier, twin: InProcessDrafter, other: Path
) -> AsyncIterator[SpeculationOptions]:
    await verifier.pool.membership.attach("twin:1", "")
    if kind == "n-grams and a draft model":
        await verifier.pool.membership.attach("local:ngram?min=1", "")
        yield SpeculationOptions(drafters=2)
    elif kind == "a swap in the middle":
        async with services.in_process_drafter(other) as drafter:
            verifier.network.listen("other:1", drafter.servicer.converse)
            verifier.engine.hold(6)
            swapping = asyncio.create_task(_swap(verifier))
            yield SpeculationOptions()
            await swapping
            await verifier.pool.changes.detach("other:1")
    else:
        yield SpeculationOptions()


async def _swap(verifier: InProcessVerifier) -> None:
    await verifier.until(lambda: verifier.engine._permits == 0)
    verifier.engine.hold(2)
    swap = asyncio.create_task(verifier.pool.changes.swap("twin:1", "other:1"))
    verifier.engine.go_on()
    await swap


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [(kind, sampled() if place % 2 else greedy()) for place, kind in enumerate(SPECULATIONS)],
    ids=SPECULATIONS,
)
async def test_the_same_bits_whoever_drafts(
    services: Services,
    verifier: InProcessVerifier,
    twin: InProcessDrafter,
    other_checkpoint: Path,
    sampling: SamplingParams,
    kind: str,
) -> None:
    await check_speculation(services, verifier, twin, other_checkpoint, sampling, kind)


@pytest.mark.slow
class TestEverySampling:
    @pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
    @pytest.mark.parametrize("kind", SPECULATIONS)
    async def test_the_same_bits_whoever_drafts(
        self,
        services: Services,
        verifier: InProcessVerifier,
        twin: InProcessDrafter,
        other_checkpoint: Path,
        sampling: SamplingParams,
        kind: str,
    ) -> None:
        await check_speculation(services, verifier, twin, other_checkpoint, sampling, kind)


async def check_speculation(
    services: Services,
    verifier: InProcessVerifier,
    twin: InProcessDrafter,
    other_checkpoint: Path,
    sampling: SamplingParams,
    kind: str,
) -> None:
    request = order(REPEATED, 60, sampling=sampling, **ASKED)
    plain = await verifier.plain(request)
    assert len(plain.log_probs) == 60 and len(plain.prompts) == 1
    async with speculating(kind, services, verifier, twin, other_checkpoint) as speculation:
        request.speculation.CopyFrom(speculation)
        if kind == "the caller":
            request.speculation.drafters = 1
            caller = ScriptedCaller(knowing([*REPEATED, *plain.token_ids]))
            async with asyncio.timeout(PATIENCE), call(verifier) as stream:
                output = await caller.run(stream, request)
        else:
            output = await verifier.generate(request)
    assert told(output) == told(plain)
    assert any(output.sources)


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
async def test_they_are_the_librarys(verifier: InProcessVerifier, checkpoint: Path, sampling: SamplingParams) -> None:
    output = await verifier.generate(order(REPEATED, 20, sampling=sampling, **ASKED))
    text = [*REPEATED, *output.token_ids]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([text])).logits[0].log_softmax(1)
    (prompt,) = output.prompts
    assert prompt.log_probs[0] == TokenLogProbs()
    for position, found in enumerate([*prompt.log_probs[1:], *output.log_probs], start=1):
        row = expected[position - 1]
        assert found.token.token_id == text[position]
        assert abs(found.token.log_prob - row[text[position]]) < 1e-3
        assert found.rank == (row >= row[text[position]]).sum()
        best = row.topk(len(found.top))
        assert [each.token_id for each in found.top] == best.indices.tolist()
        assert np.abs(np.array([each.log_prob for each in found.top]) - best.values.numpy()).max() < 1e-3
    assert {len(found.top) for found in prompt.log_probs[1:]} == {3}
    assert {len(found.top) for found in output.log_probs} == {5}


async def test_tokens_have_their_texts(verifier: InProcessVerifier) -> None:
    output = await verifier.generate(order(max_tokens=10, **ASKED))
    (prompt,) = output.prompts
    assert list(prompt.token_ids) == PROMPT
    assert prompt.text == verifier.verifier.model.tokenizer.decode(PROMPT)
    assert list(prompt.token_texts) == [f"w{token - 3}" for token in PROMPT]
    for text, offset in zip(prompt.token_texts, prompt.text_offsets, strict=True):
        assert prompt.text[offset:].lstrip().startswith(text)
    for found in output.log_probs:
        for each in (found.token, *found.top):
            if 3 <= each.token_id < 103:
                assert (each.text, each.text_bytes) == (f"w{each.token_id - 3}", f"w{each.token_id - 3}".encode())


async def test_nothing_is_told_that_was_not_asked_for(verifier: InProcessVerifier) -> None:
    output = await verifier.generate(order(max_tokens=5))
    assert not output.prompts and not output.log_probs


@pytest.mark.parametrize("asked", [{"echo": True}, {"prompt_log_probs": 0}])
async def test_the_prompt_alone(verifier: InProcessVerifier, asked: dict[str, Any]) -> None:
    output = await verifier.generate(order(max_tokens=5, **asked))
    (prompt,) = output.prompts
    assert list(prompt.token_ids) == PROMPT
    assert len(prompt.log_probs) == (0 if "echo" in asked else len(PROMPT))
    assert not any(each.top for each in prompt.log_probs)
    assert not output.log_probs


async def test_a_prompt_of_one_token(verifier: InProcessVerifier) -> None:
    output = await verifier.generate(order([5], 3, **ASKED))
    (prompt,) = output.prompts
    assert (list(prompt.token_ids), list(prompt.log_probs)) == ([5], [TokenLogProbs()])


async def test_a_resumed_request_goes_on_with_it(verifier: InProcessVerifier) -> None:
    whole = await verifier.generate(order(max_tokens=20, **ASKED))
    output = await verifier.generate(order(max_tokens=20, resume_token_ids=whole.token_ids[:8], **ASKED))
    assert output.text_offsets == whole.text_offsets[8:]
    assert output.log_probs == whole.log_probs[8:]
    assert output.prompts == whole.prompts


async def test_logits_that_are_no_numbers_end_the_request(
    verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = verifier.engine.step

    def bad_step() -> StepResult:
        result = step()
        for number, part in result.prompts.items():
            nothing = np.full_like(part.log_probs, np.nan)
            result.prompts[number] = LogProbs(part.token_ids, nothing, part.ranks, part.top_ids, part.top_log_probs)
        return result

    monkeypatch.setattr(verifier.engine, "step", bad_step)
    assert await failure(verifier.generate(order(**ASKED))) == ("INTERNAL", "INTERNAL")
    assert len((await verifier.generate(order(max_tokens=5))).token_ids) == 5


async def test_statistics_count_drafts_and_positions(verifier: InProcessVerifier) -> None:
    plain = await verifier.plain(order())
    assert (plain.finished.speculation.drafts, list(plain.finished.speculation.accepted_per_position)) == (0, [])
    expected = SpeculationOptions(prediction=Prediction(token_ids=plain.token_ids))
    stats = (await verifier.generate(order(speculation=expected))).finished.speculation
    assert 0 < stats.drafts <= stats.steps
    counts = list(stats.accepted_per_position)
    assert sum(counts) == stats.accepted_tokens > 0
    assert counts == sorted(counts, reverse=True), "who is the second of a step has a first before it"
    assert counts[0] <= stats.drafts


class TestEnds:
    async def token(self, verifier: InProcessVerifier) -> tuple[Output, int, int]:
        """Returns an output, one of its tokens that has a text, and that token's first position."""
        plain = await verifier.plain(order())
        token = next(token for token in plain.token_ids[8:] if 3 <= token < 103)
        return plain, token, plain.token_ids.index(token)

    @pytest.mark.parametrize("ignore_eos", [False, True])
    async def test_a_stop_token(self, verifier: InProcessVerifier, ignore_eos: bool) -> None:
        plain, token, place = await self.token(verifier)
        output = await verifier.generate(order(stop_token_ids=[token, 4], ignore_eos=ignore_eos))
        assert output.token_ids == plain.token_ids[: place + 1]
        assert output.finished.finish_reason == pb.FINISH_REASON_STOP
        assert output.finished.stop_token_id == token
        decode = verifier.verifier.model.tokenizer.decode
        assert output.text == decode(output.token_ids[:-1])
        kept = await verifier.generate(order(stop_token_ids=[token], include_stop=True))
        assert kept.text == decode(output.token_ids)

    async def test_whoever_drafts(self, verifier: InProcessVerifier) -> None:
        plain, token, place = await self.token(verifier)
        prediction = SpeculationOptions(prediction=Prediction(token_ids=plain.token_ids))
        request = order(stop_token_ids=[token], speculation=prediction, **ASKED)
        output = await verifier.generate(request)
        assert any(output.sources)
        assert told(output) == told(await verifier.plain(request))
        assert len(output.token_ids) == place + 1

    async def test_a_resumed_request_that_has_its_stop_token(self, verifier: InProcessVerifier) -> None:
        plain, token, place = await self.token(verifier)
        output = await verifier.generate(
            order(stop_token_ids=[token], resume_token_ids=plain.token_ids[: place + 1], echo=True)
        )
        assert (output.token_ids, output.finished.stop_token_id) == ([], token)
        assert [list(each.token_ids) for each in output.prompts] == [PROMPT]

    async def test_a_stop_string_that_stays(self, verifier: InProcessVerifier) -> None:
        plain, token, place = await self.token(verifier)
        stop = verifier.verifier.model.tokenizer.decode([token])
        output = await verifier.generate(order(stop=[stop], include_stop=True))
        assert output.text == plain.text[: plain.text.index(stop) + len(stop)]
        assert output.finished.stop == stop

    async def test_without_a_stop_token_none_is_told(self, verifier: InProcessVerifier) -> None:
        output = await verifier.generate(order(max_tokens=3))
        assert not output.finished.HasField("stop_token_id")


class TestMaxTime:
    async def test_ends_with_what_there_is(self, verifier: InProcessVerifier) -> None:
        plain = await verifier.plain(order())
        verifier.engine.hold(7)
        request = order(**ASKED)
        request.max_time.FromMilliseconds(400)
        output = await verifier.generate(request)
        verifier.engine.go_on()
        assert output.finished.finish_reason == pb.FINISH_REASON_DEADLINE
        assert 0 < len(output.token_ids) < TOKENS
        assert output.token_ids == plain.token_ids[: len(output.token_ids)]
        assert len(output.log_probs) == len(output.token_ids)
        await verifier.freed()

    async def test_also_while_it_waits_for_room(self, services: Services, checkpoint: Path) -> None:
        async with services.in_process_verifier(checkpoint, max_sequences=1) as verifier:
            verifier.engine.hold(2)
            first = asyncio.create_task(verifier.generate(order()))
            await verifier.until(lambda: verifier.verifier.status().running_sequences)
            request = order()
            request.max_time.FromMilliseconds(100)
            output = await verifier.generate(request)
            assert (output.finished.finish_reason, output.token_ids) == (pb.FINISH_REASON_DEADLINE, [])
            assert output.finished.usage.completion_tokens == 0
            verifier.engine.go_on()
            assert len((await first).token_ids) == TOKENS

    async def test_a_request_in_time_ends_as_ever(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=5)
        request.max_time.FromSeconds(3600)
        assert (await verifier.generate(request)).finished.finish_reason == pb.FINISH_REASON_LENGTH
        loop: Any = asyncio.get_running_loop()
        timers = [each for each in getattr(loop, "_scheduled", ()) if not each.cancelled()]
        assert not [each for each in timers if each.when() > loop.time() + 1800], "its timer is gone"

    async def test_who_follows_the_traffic_is_told(self, services: Services, checkpoint: Path) -> None:
        async with services.in_process_verifier(checkpoint, share_traffic=True) as verifier:
            following = VerifierServicer(verifier.verifier).FollowTraffic(pb.FollowTrafficRequest(), ONE)
            await anext(following)
            verifier.engine.hold(3)
            request = order()
            request.max_time.FromMilliseconds(300)
            output = await verifier.generate(request)
            (served,) = (await anext(following)).requests
            assert list(served.token_ids) == output.token_ids
            await following.aclose()

    async def test_whose_caller_drafts(self, verifier: InProcessVerifier) -> None:
        verifier.engine.hold(3)
        request = order()
        request.max_time.FromMilliseconds(300)
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            output = await ScriptedCaller().run(stream, request)
        verifier.engine.go_on()
        assert output.finished.finish_reason == pb.FINISH_REASON_DEADLINE
