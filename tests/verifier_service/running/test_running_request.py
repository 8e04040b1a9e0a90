"""The events that a request's caller receives: text, sources, the end."""

import asyncio
import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.token_log_probs_pb2 import TokenLogProbs
from draftwire.v1.verifier_service_pb2 import FinishReason
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish, RejectedDraft, SequenceOutcome
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.token_texts import TokenTexts
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models import byte_tokenizers
from tests.harness.services.in_process_verifier import Output
from tests.harness.waiting import PATIENCE
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.running import chunk_parts, running_request
from verifier_service.running.chunk_parts import MOST_REJECTED, log_prob_messages
from verifier_service.running.running_request import RunningRequest

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level tokenizer, which splits characters over several tokens, with an end of sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"))


@pytest.fixture(scope="module")
def eos(tokenizer: Tokenizer) -> int:
    return tokenizer.encode("<eos>")[0]


class Requests:
    """Makes requests, and step outcomes for them."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self.tokenizer = tokenizer
        self.eos = eos

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def make(
        self,
        *,
        stops: Sequence[str] = (),
        resumed: Sequence[int] = (),
        max_tokens: int = 100,
        ignore_eos: bool = False,
        stop_token_ids: frozenset[int] = frozenset(),
        log_probs: int | None = None,
        **fields: Any,
    ) -> RunningRequest:
        spec = SequenceSpec(
            sequence_id=9,
            tokens=[*PROMPT, *resumed],
            max_length=len(PROMPT) + max_tokens,
            sampling=SamplingParams(seed=5),
            eos_token_ids=stop_token_ids | (frozenset() if ignore_eos else {self.eos}),
            logprobs=log_probs,
        )
        order = GenerateOrder(
            request_id="r",
            spec=spec,
            prompt_length=len(PROMPT),
            prompt_was_text=True,
            stops=tuple(stops),
            speculate=True,
            stop_token_ids=stop_token_ids,
            **fields,
        )
        return RunningRequest(order, self.tokenizer)

    def step(
        self,
        request: RunningRequest,
        tokens: Sequence[int],
        sources: Sequence[str | None] | None = None,
        finish: Finish | None = None,
        hit: bool = False,
        log_probs: LogProbs | None = None,
    ) -> None:
        found = list(sources) if sources is not None else [None] * len(tokens)
        drafted = {name: found.count(name) + 1 for name in found if name is not None}
        length = len(request.tokens) + len(tokens)
        request.take(SequenceOutcome(9, list(tokens), found, length, drafted, finish, hit, log_probs=log_probs))


@pytest.fixture
def requests(tokenizer: Tokenizer, eos: int) -> Requests:
    return Requests(tokenizer, eos)


async def collect(request: RunningRequest) -> Output:
    output = Output()
    async with asyncio.timeout(PATIENCE):
        async for event in request.events():
            output.take(event)
    return output


async def test_started_chunks_finished(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("ab"), hit=True)
    requests.step(request, requests.encode("c"), finish=Finish.LENGTH)
    output = await collect(request)
    assert output.started.request_id == "r"
    assert output.started.prompt_token_ids == PROMPT
    assert (output.started.prompt_tokens, output.started.seed) == (3, 5)
    assert (output.text, output.token_ids) == ("abc", requests.encode("abc"))
    assert output.finished.finish_reason == FinishReason.FINISH_REASON_LENGTH
    assert (output.finished.usage.prompt_tokens, output.finished.usage.completion_tokens) == (3, 3)
    assert 0 <= output.finished.usage.first_token_seconds <= output.finished.usage.total_seconds
    assert (output.finished.speculation.steps, output.finished.speculation.hits) == (2, 1)


async def test_a_text_that_goes_on_from_the_prompt_keeps_its_space(eos: int) -> None:
    """Tokenizers as Llama 2's take the first space off a text, as which an answer in a conversation counts."""
    spaced = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_tokenizers.backend("spaced")))
    prompt, output = (spaced.encode(text, add_special_tokens=False) for text in ("what is", "Paris now"))
    texts = []
    for is_answer in (False, True):
        spec = SequenceSpec(sequence_id=9, tokens=prompt, max_length=99, sampling=SamplingParams())
        order = GenerateOrder("r", spec, len(prompt), prompt_was_text=True, stops=(), speculate=True)
        request = RunningRequest(replace(order, is_answer=is_answer), spaced)
        Requests(spaced, eos).step(request, output, finish=Finish.LENGTH)
        _, chunk, _ = [event async for event in request.events()]
        texts.append(chunk.chunk.text)
        assert "".join(chunk.chunk.token_texts) == " Paris now"
    assert texts == [" Paris now", "Paris now"]


async def test_a_caller_that_reads_slowly_gets_all_in_one_chunk(requests: Requests) -> None:
    request = requests.make()
    for letter in string.ascii_lowercase:
        requests.step(request, requests.encode(letter))
    requests.step(request, [requests.eos], finish=Finish.EOS)
    events = [event async for event in request.events()]
    assert [event.WhichOneof("event") for event in events] == ["started", "chunk", "finished"]
    assert events[1].chunk.text == string.ascii_lowercase
    assert events[1].chunk.token_texts[:3] == ["a", "b", "c"]


async def test_sources_name_who_drafted_each_token(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("abc"), ["x", "y", None])
    requests.step(request, requests.encode("de"), ["y", None], finish=Finish.LENGTH)
    output = await collect(request)
    assert output.sources == ["x", "y", None, "y", None]
    stats = output.finished.speculation
    assert (stats.draft_tokens, stats.accepted_tokens) == (6, 3)
    assert {each.name: (each.draft_tokens, each.accepted_tokens) for each in stats.drafters} == {
        "x": (2, 1),
        "y": (4, 2),
    }


async def test_rejected_draft_tokens_are_told_with_their_drafter(requests: Requests) -> None:
    request = requests.make()
    a, b, c = requests.encode("abc")
    outcome = SequenceOutcome(9, [a], [None], 4, {"x": 2})
    outcome.rejected = [RejectedDraft(b, "x", 3, 1), RejectedDraft(c, "x", 4, 2)]
    request.take(outcome)
    events = request.events()
    await anext(events)
    chunk = (await anext(events)).chunk
    assert list(chunk.drafters) == ["x"] and list(chunk.sources) == [0]
    assert [(each.token_id, each.text, each.source, each.position, each.depth) for each in chunk.rejected] == [
        (b, "b", 1, 3, 1),
        (c, "c", 1, 4, 2),
    ]


async def test_what_waits_of_rejected_draft_tokens_is_bounded(requests: Requests) -> None:
    request = requests.make()
    (a,) = requests.encode("a")
    for _ in range(5):
        outcome = SequenceOutcome(9, [a], [None], len(request.tokens) + 1, {"x": 60})
        outcome.rejected = [RejectedDraft(a, "x", len(request.tokens), 1)] * 60
        request.take(outcome)
    events = request.events()
    await anext(events)
    assert len((await anext(events)).chunk.rejected) == MOST_REJECTED < 5 * 60


async def test_numbers_of_drafters_are_those_of_their_own_chunk(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("a"), ["x"])
    events = request.events()
    assert (await anext(events)).WhichOneof("event") == "started"
    first = (await anext(events)).chunk
    requests.step(request, requests.encode("b"), ["y"])
    second = (await anext(events)).chunk
    assert (list(first.drafters), list(first.sources)) == (["x"], [1])
    assert (list(second.drafters), list(second.sources)) == (["y"], [1])


async def test_a_character_over_several_tokens_comes_whole(requests: Requests) -> None:
    request = requests.make()
    tokens = requests.encode("né€!")
    assert len(tokens) > len("né€!")
    texts = []
    events = request.events()
    await anext(events)
    for token in tokens:
        requests.step(request, [token])
        texts.append((await anext(events)).chunk.text)
    assert texts == ["n", "", "é", "", "", "€", "!"]


async def test_a_character_that_is_never_completed_shows_at_the_end(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("a€")[:-1], finish=Finish.LENGTH)
    output = await collect(request)
    assert output.text.startswith("a\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("cut", range(1, 7))
async def test_a_stop_string_over_steps(requests: Requests, cut: int) -> None:
    request = requests.make(stops=["STOP"])
    tokens = requests.encode("aSTOPbc")
    requests.step(request, tokens[:cut])
    if not request.finished:
        requests.step(request, tokens[cut:])
    assert request.finished
    output = await collect(request)
    assert (output.text, output.finished.stop) == ("a", "STOP")
    assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP
    assert output.token_ids == tokens[:5], "tokens behind the stop string are not reported, wherever a step ended"
    assert output.finished.usage.completion_tokens == 5


async def test_text_that_might_have_been_a_stop_string_comes_at_the_end(requests: Requests) -> None:
    request = requests.make(stops=["STOP"])
    requests.step(request, requests.encode("aST"), finish=Finish.LENGTH)
    events = [event async for event in request.events()]
    assert events[1].chunk.text == "a"
    assert events[2].finished.text == "ST"
    assert events[2].finished.stop == ""


async def test_a_stop_string_that_the_last_incomplete_character_completes(requests: Requests) -> None:
    request = requests.make(stops=["\N{REPLACEMENT CHARACTER}"])
    requests.step(request, requests.encode("a€")[:-1], finish=Finish.LENGTH)
    output = await collect(request)
    assert (output.text, output.finished.stop) == ("a", "\N{REPLACEMENT CHARACTER}")
    assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP


async def test_the_end_of_the_sequence_is_no_text(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, [*requests.encode("ab"), requests.eos], finish=Finish.EOS)
    output = await collect(request)
    assert (output.text, output.token_ids[-1]) == ("ab", requests.eos)
    assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP


async def test_logits_that_are_no_numbers_end_the_request_with_an_error(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("a"))
    requests.step(request, [], finish=Finish.FAULT)
    assert request.finished
    with pytest.raises(ServiceError) as caught:
        await collect(request)
    assert (caught.value.code, caught.value.reason_name) == (grpc.StatusCode.INTERNAL, "INTERNAL")


async def test_tokens_that_were_committed_come_before_an_error(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("a"))
    request.fail(ServiceError(grpc.StatusCode.INTERNAL, ErrorReason.ERROR_REASON_INTERNAL, "gone"))
    output = Output()
    with pytest.raises(ServiceError, match="gone"):
        async for event in request.events():
            output.take(event)
    assert output.text == "a"


async def test_an_event_wakes_the_caller_that_waits(requests: Requests) -> None:
    request = requests.make()
    waiting = asyncio.create_task(collect(request))
    await asyncio.sleep(0)
    requests.step(request, requests.encode("a"), finish=Finish.LENGTH)
    assert (await waiting).text == "a"


async def test_offsets_are_characters_of_the_text(requests: Requests) -> None:
    request = requests.make()
    text = "né€!🐍x"
    requests.step(request, requests.encode(text), finish=Finish.LENGTH)
    events = [event async for event in request.events()]
    expected = [place for place, character in enumerate(text) for _ in character.encode()]
    assert list(events[1].chunk.text_offsets) == expected


async def test_offsets_go_on_where_a_stop_string_is_left_out(requests: Requests) -> None:
    request = requests.make(stops=["STOP"])
    requests.step(request, requests.encode("abSTOP"))
    events = [event async for event in request.events()]
    assert events[1].chunk.text == "ab"
    assert list(events[1].chunk.text_offsets) == [0, 1, 2, 3, 4, 5]


async def test_a_stop_string_that_stays(requests: Requests) -> None:
    request = requests.make(stops=["STOP"], include_stop=True)
    requests.step(request, requests.encode("aSTOPbc"))
    output = await collect(request)
    assert (output.text, output.finished.stop) == ("aSTOP", "STOP")


@pytest.mark.parametrize("kept", [False, True])
async def test_a_stop_token(requests: Requests, kept: bool) -> None:
    (stop,) = requests.encode("!")
    request = requests.make(stop_token_ids=frozenset({stop}), include_stop=kept, ignore_eos=True)
    assert request.order.spec.eos_token_ids == {stop}
    requests.step(request, requests.encode("ab!"), finish=Finish.EOS)
    output = await collect(request)
    assert (output.text, output.finished.stop_token_id) == ("ab!" if kept else "ab", stop)
    assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP


async def test_the_end_of_the_sequence_is_told_and_never_kept(requests: Requests) -> None:
    request = requests.make(include_stop=True)
    requests.step(request, [*requests.encode("ab"), requests.eos], finish=Finish.EOS)
    output = await collect(request)
    assert (output.text, output.finished.stop_token_id) == ("ab", requests.eos)


async def test_a_stop_string_that_its_own_stop_token_completes(requests: Requests) -> None:
    (stop,) = requests.encode("!")
    request = requests.make(stops=["b!"], stop_token_ids=frozenset({stop}), include_stop=True)
    requests.step(request, requests.encode("ab!"), finish=Finish.EOS)
    output = await collect(request)
    assert (output.text, output.finished.stop, output.finished.stop_token_id) == ("ab!", "b!", stop)


async def test_many_log_probs_that_nobody_reads_come_in_several_chunks(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_request, "MOST_ENTRIES", 12)
    request = requests.make(log_probs=2)
    for letter in string.ascii_lowercase:
        (token,) = requests.encode(letter)
        told = LogProbs(np.array([token]), np.zeros(1), np.ones(1, np.int64), np.array([[token, 0]]), np.zeros((1, 2)))
        requests.step(request, [token], log_probs=told)
    request.expire()
    chunks = [event.chunk async for event in request.events() if event.HasField("chunk")]
    assert [len(chunk.token_ids) for chunk in chunks] == [4] * 6 + [2]
    assert all(len(chunk.log_probs) == len(chunk.token_ids) for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == string.ascii_lowercase


async def test_log_probs_that_nobody_reads_are_no_messages(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the most alternatives these take 10 KB a token."""
    made: list[int] = []

    def counted(told: LogProbs, texts: TokenTexts) -> list[TokenLogProbs]:
        made.append(len(told))
        return log_prob_messages(told, texts)

    monkeypatch.setattr(chunk_parts, "log_prob_messages", counted)
    monkeypatch.setattr(running_request, "log_prob_messages", counted, raising=False)
    request = requests.make(log_probs=1)
    tokens = requests.encode("abc")
    zeros = np.zeros(3, np.float32)
    told = LogProbs(np.array(tokens), zeros, np.array([1, 2, 3]), np.array(tokens)[:, None], zeros[:, None])
    requests.step(request, tokens, log_probs=told)
    request.expire()
    assert not made
    output = await collect(request)
    assert [(each.token.token_id, each.token.text, each.rank) for each in output.log_probs] == [
        (token, letter, rank) for token, letter, rank in zip(tokens, "abc", (1, 2, 3), strict=True)
    ]
    assert sum(made) == 3


async def test_a_request_whose_time_is_over_ends_with_what_it_has(requests: Requests) -> None:
    request = requests.make(stops=["STOP"])
    requests.step(request, requests.encode("aST"))
    request.expire()
    output = await collect(request)
    assert (output.text, output.finished.finish_reason) == ("aST", FinishReason.FINISH_REASON_DEADLINE)
    request.expire()
    assert request.finished


async def test_accepted_tokens_are_counted_by_their_place(requests: Requests) -> None:
    request = requests.make()
    requests.step(request, requests.encode("abc"), ["x", "x", None])
    requests.step(request, requests.encode("d"), [None])
    requests.step(request, requests.encode("ef"), ["x", None], finish=Finish.LENGTH)
    stats = (await collect(request)).finished.speculation
    assert (stats.drafts, list(stats.accepted_per_position)) == (2, [2, 1])


class TestResume:
    @pytest.mark.parametrize("known", range(9))
    @pytest.mark.parametrize("kept", [False, True])
    async def test_ends_that_stay_and_offsets(self, requests: Requests, known: int, kept: bool) -> None:
        (stop,) = requests.encode("!")
        fields = {"stop_token_ids": frozenset({stop}), "include_stop": kept}
        tokens = requests.encode("é €b!")
        whole = requests.make(**fields)
        requests.step(whole, tokens, finish=Finish.EOS)
        events = [event async for event in whole.events()]
        offsets = list(events[1].chunk.text_offsets)
        resumed = requests.make(resumed=tokens[:known], **fields)
        assert resumed.finished == (known == len(tokens))
        if not resumed.finished:
            requests.step(resumed, tokens[known:], finish=Finish.EOS)
        output = await collect(resumed)
        assert output.text_offsets == offsets[known:]
        assert output.finished.stop_token_id == stop
        assert ("é €b!" if kept else "é €b").endswith(output.text)

    @pytest.mark.parametrize("known", range(12))
    async def test_the_rest_of_the_text_follows_what_the_caller_has(self, requests: Requests, known: int) -> None:
        """The break may fall within a character, within a possible stop string, before it or after it."""
        tokens = [*requests.encode("é S€TOaSTOPb"), requests.eos]
        whole = requests.make(stops=["STOP"])
        text = ""
        events = whole.events()
        await anext(events)
        for token in tokens[:known]:
            requests.step(whole, [token])
            text += (await anext(events)).chunk.text
        requests.step(whole, tokens[known:], finish=Finish.EOS)

        resumed = requests.make(stops=["STOP"], resumed=tokens[:known])
        assert resumed.order.spec.tokens == [*PROMPT, *tokens[:known]]
        assert not resumed.finished
        requests.step(resumed, tokens[known:], finish=Finish.EOS)
        output = await collect(resumed)
        assert text + output.text == "é S€TOa"
        assert output.finished.stop == "STOP"
        assert [*tokens[:known], *output.token_ids] == requests.encode("é S€TOaSTOP")
        assert output.finished.usage.completion_tokens == len(requests.encode("é S€TOaSTOP"))

    async def test_complete_by_its_number_of_tokens(self, requests: Requests) -> None:
        request = requests.make(resumed=requests.encode("abcd"), max_tokens=3)
        assert request.finished
        output = await collect(request)
        assert (output.token_ids, output.text) == ([], "")
        assert output.finished.finish_reason == FinishReason.FINISH_REASON_LENGTH
        assert output.finished.usage.completion_tokens == 3

    async def test_complete_by_the_end_of_the_sequence(self, requests: Requests) -> None:
        request = requests.make(resumed=[*requests.encode("aST"), requests.eos], stops=["STOP"])
        assert request.finished
        output = await collect(request)
        assert (output.token_ids, output.text) == ([], "ST"), "the caller has not got what was held back"
        assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP

    async def test_past_the_end_of_the_sequence_when_that_is_ignored(self, requests: Requests) -> None:
        request = requests.make(resumed=[*requests.encode("a"), requests.eos], ignore_eos=True)
        assert not request.finished
        assert request.order.spec.eos_token_ids == frozenset()

    async def test_complete_by_a_stop_string(self, requests: Requests) -> None:
        request = requests.make(resumed=requests.encode("aSTOPb"), stops=["STOP"])
        assert request.finished
        output = await collect(request)
        assert (output.token_ids, output.text, output.finished.stop) == ([], "", "STOP")
        assert output.finished.usage.completion_tokens == 5

    async def test_a_character_that_is_never_completed(self, requests: Requests) -> None:
        request = requests.make(resumed=requests.encode("€")[:2], max_tokens=2)
        output = await collect(request)
        assert "\N{REPLACEMENT CHARACTER}" in output.text
