"""Each fault of a request has its code, reason and field; fields left unset get defaults."""

import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import AcceptancePreset, AcceptanceRule, SpeculationOptions
from draftwire_core.engine.acceptance.acceptance import COUPLED
from draftwire_core.engine.logits.logit_changes import NO_CHANGES, LogitChanges
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models import byte_tokenizers
from verifier_service.reading import acceptance as acceptance_reader
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.reading.request import RequestReader
from verifier_service.reading.text_pool import TextPool

VOCABULARY, CONTEXT = 200, 64
MODELS = Path(__file__).resolve().parents[3] / "models"


@pytest.fixture(scope="module")
def reader(checkpoint: Path) -> RequestReader:
    return RequestReader(Tokenizer.load(str(checkpoint)), VOCABULARY, CONTEXT, kv_tokens=1000, pool=TextPool())


def ids(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": SamplingParams(**fields)}


FULL = [3] * CONTEXT


def rule(number: int, **options: Any) -> dict[str, Any]:
    return {"speculation": SpeculationOptions(acceptance=number, **options)}  # type: ignore[arg-type]


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a suffix that the tokenizer has no tokens for": (
        {"text": "a", "token_ids": None, "suffix": "b"},
        "INVALID_FIELD",
        "suffix",
    ),
    "a suffix of a conversation": (
        {"messages": pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="a")]), "suffix": "b"},
        "INVALID_FIELD",
        "suffix",
    ),
    "an adapter that is not there": ({"adapter": "sql"}, "INVALID_FIELD", "adapter"),
    "no prompt": ({"token_ids": None}, "EMPTY_PROMPT", "prompt"),
    "empty text": ({"text": ""}, "EMPTY_PROMPT", "text"),
    "empty ids": ({"token_ids": ids()}, "EMPTY_PROMPT", "token_ids"),
    "no messages": ({"messages": pb.ChatMessages()}, "EMPTY_PROMPT", "messages.messages"),
    "no chat template": (
        {"messages": pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="w1")])},
        "INVALID_FIELD",
        "messages",
    ),
    "prompt as long as the context": ({"token_ids": ids(*FULL)}, "CONTEXT_EXCEEDED", "token_ids"),
    "text beyond the context": ({"text": "w1 " * (CONTEXT + 1)}, "CONTEXT_EXCEEDED", "text"),
    "prompt and max_tokens beyond it": (
        {"token_ids": ids(*FULL[:60]), "max_tokens": 5},
        "CONTEXT_EXCEEDED",
        "max_tokens",
    ),
    "huge max_tokens": ({"max_tokens": 2**32 - 1}, "CONTEXT_EXCEEDED", "max_tokens"),
    "id beyond the vocabulary": ({"token_ids": ids(3, VOCABULARY)}, "TOKEN_OUT_OF_RANGE", "token_ids.ids[1]"),
    "resumed id beyond it": ({"resume_token_ids": [1, 2, 2**32 - 1]}, "TOKEN_OUT_OF_RANGE", "resume_token_ids[2]"),
    "negative temperature": (sampling(temperature=-0.1), "INVALID_FIELD", "sampling.temperature"),
    "NaN temperature": (sampling(temperature=math.nan), "INVALID_FIELD", "sampling.temperature"),
    "infinite temperature": (sampling(temperature=math.inf), "INVALID_FIELD", "sampling.temperature"),
    "top_p 0": (sampling(top_p=0.0), "INVALID_FIELD", "sampling.top_p"),
    "top_p above 1": (sampling(top_p=1.01), "INVALID_FIELD", "sampling.top_p"),
    "negative top_p": (sampling(top_p=-0.5), "INVALID_FIELD", "sampling.top_p"),
    "NaN top_p": (sampling(top_p=math.nan), "INVALID_FIELD", "sampling.top_p"),
    "negative min_p": (sampling(min_p=-0.1), "INVALID_FIELD", "sampling.min_p"),
    "min_p above 1": (sampling(min_p=1.1), "INVALID_FIELD", "sampling.min_p"),
    "NaN min_p": (sampling(min_p=math.nan), "INVALID_FIELD", "sampling.min_p"),
    "typical_p 0": (sampling(typical_p=0.0), "INVALID_FIELD", "sampling.typical_p"),
    "NaN typical_p": (sampling(typical_p=math.nan), "INVALID_FIELD", "sampling.typical_p"),
    "repetition_penalty 0": (sampling(repetition_penalty=0.0), "INVALID_FIELD", "sampling.repetition_penalty"),
    "infinite repetition_penalty": (
        sampling(repetition_penalty=math.inf),
        "INVALID_FIELD",
        "sampling.repetition_penalty",
    ),
    "presence_penalty above 2": (sampling(presence_penalty=2.1), "INVALID_FIELD", "sampling.presence_penalty"),
    "NaN frequency_penalty": (sampling(frequency_penalty=math.nan), "INVALID_FIELD", "sampling.frequency_penalty"),
    "bias above 100": (sampling(logit_bias={3: 1.0, 7: 100.5}), "INVALID_FIELD", "sampling.logit_bias[7]"),
    "NaN bias": (sampling(logit_bias={7: math.nan}), "INVALID_FIELD", "sampling.logit_bias[7]"),
    "bias beyond the vocabulary": (
        sampling(logit_bias={VOCABULARY: 1.0}),
        "TOKEN_OUT_OF_RANGE",
        f"sampling.logit_bias[{VOCABULARY}]",
    ),
    "allowed id beyond it": (
        sampling(allowed_token_ids=[3, VOCABULARY]),
        "TOKEN_OUT_OF_RANGE",
        "sampling.allowed_token_ids[1]",
    ),
    "banned id beyond it": (
        sampling(banned_token_ids=[3, 4, VOCABULARY + 9]),
        "TOKEN_OUT_OF_RANGE",
        "sampling.banned_token_ids[2]",
    ),
    "more banned ids than tokens": (
        sampling(banned_token_ids=[3] * (VOCABULARY + 1)),
        "INVALID_FIELD",
        "sampling.banned_token_ids",
    ),
    "empty bad word": (sampling(bad_words=["w1", ""]), "INVALID_FIELD", "sampling.bad_words[1]"),
    "long bad word": (sampling(bad_words=["w" * 257]), "INVALID_FIELD", "sampling.bad_words[0]"),
    "too many bad words": (sampling(bad_words=["w1"] * 257), "INVALID_FIELD", "sampling.bad_words"),
    "min_tokens above max_tokens": ({"min_tokens": 6, "max_tokens": 5}, "INVALID_FIELD", "min_tokens"),
    "min_tokens beyond the context": ({"min_tokens": CONTEXT - 1}, "INVALID_FIELD", "min_tokens"),
    "max_tokens 0": ({"max_tokens": 0}, "INVALID_FIELD", "max_tokens"),
    "unknown acceptance rule": (
        {"speculation": SpeculationOptions(acceptance=99)},  # type: ignore[arg-type]
        "INVALID_FIELD",
        "speculation.acceptance",
    ),
    "threshold 0": (rule(4, threshold=0.0), "INVALID_FIELD", "speculation.threshold"),
    "threshold above 1": (rule(4, threshold=1.5), "INVALID_FIELD", "speculation.threshold"),
    "threshold of another rule": (rule(2, threshold=0.5), "INVALID_FIELD", "speculation.threshold"),
    "threshold without a rule": (rule(0, threshold=0.5), "INVALID_FIELD", "speculation.threshold"),
    "threshold beside a preset": (rule(4, preset=2, threshold=0.5), "INVALID_FIELD", "speculation.threshold"),
    "unknown planning": (rule(0, planning=99), "INVALID_FIELD", "speculation.planning"),
    "unknown preset": (rule(4, preset=99), "INVALID_FIELD", "speculation.preset"),
    "preset of another rule": (rule(1, preset=2), "INVALID_FIELD", "speculation.preset"),
    "NaN posterior threshold": (
        rule(3, posterior_threshold=math.nan),
        "INVALID_FIELD",
        "speculation.posterior_threshold",
    ),
    "posterior alpha 0": (rule(3, posterior_alpha=0.0), "INVALID_FIELD", "speculation.posterior_alpha"),
    "posterior alpha of another rule": (rule(4, posterior_alpha=0.5), "INVALID_FIELD", "speculation.posterior_alpha"),
    "dynamic temperature for the coupled rule": (
        rule(0, dynamic_temperature=True),
        "INVALID_FIELD",
        "speculation.dynamic_temperature",
    ),
    "too many stop strings": ({"stop": ["x"] * 17}, "INVALID_FIELD", "stop"),
    "an empty stop string": ({"stop": ["x", ""]}, "INVALID_FIELD", "stop[1]"),
    "too many stop tokens": ({"stop_token_ids": [3] * 65}, "INVALID_FIELD", "stop_token_ids"),
    "stop token beyond the vocabulary": (
        {"stop_token_ids": [3, VOCABULARY]},
        "TOKEN_OUT_OF_RANGE",
        "stop_token_ids[1]",
    ),
    "no time": ({"max_time": Duration()}, "INVALID_FIELD", "max_time"),
    "negative time": ({"max_time": Duration(seconds=-1)}, "INVALID_FIELD", "max_time"),
    "time without end": ({"max_time": Duration(seconds=2**62)}, "INVALID_FIELD", "max_time"),
    "too many alternatives": ({"log_probs": 65}, "INVALID_FIELD", "log_probs"),
    "too many alternatives of the prompt": ({"prompt_log_probs": 2**32 - 1}, "INVALID_FIELD", "prompt_log_probs"),
    "a stop string that is too long": ({"stop": ["x" * 257]}, "INVALID_FIELD", "stop[0]"),
}


async def read(reader: RequestReader, **fields: Any) -> GenerateOrder:
    if not {"text", "messages", "token_ids"} & set(fields):
        fields["token_ids"] = ids(5, 9)
    return await reader.read(pb.GenerateRequest(**fields))


@pytest.mark.parametrize("name", BAD)
async def test_faults_have_a_reason_and_name_the_field(reader: RequestReader, name: str) -> None:
    fields, reason, field = BAD[name]
    with pytest.raises(ServiceError) as caught:
        await read(reader, **fields)
    error = caught.value
    assert (error.code, error.reason_name) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert [violation.field for violation in error.field_violations] == [field]
    assert error.field_violations[0].description in error.message
    assert field in error.message


async def test_what_is_left_open_is_settled(reader: RequestReader) -> None:
    found = await read(reader)
    assert found.request_id.startswith("req-")
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.top_p) == (1.0, 0, 1.0)
    assert (found.max_length, found.speculate, found.drafter_names, found.spec.max_draft_tokens) == (
        CONTEXT,
        True,
        (),
        None,
    )
    assert (await read(reader)).sampling.seed != found.sampling.seed
    seeds = [(await read(reader)).sampling.seed for _ in range(100)]
    assert max(seeds) < 2**53, "as large as numbers are in every language"
    assert max(seeds) >= 2**48, "and no smaller than they have to be"
    assert (await read(reader)).request_id != found.request_id


async def test_what_is_given_is_taken(reader: RequestReader) -> None:
    found = await read(
        reader,
        request_id="mine",
        sampling=SamplingParams(temperature=0.5, top_k=9, top_p=0.25, min_p=1.0, seed=2**64 - 1),
        max_tokens=CONTEXT - 2,
        stop=["x" * 256] * 16,
        ignore_eos=True,
        resume_token_ids=[VOCABULARY - 1],
        speculation=SpeculationOptions(
            drafter="a", max_draft_tokens=3, acceptance=AcceptanceRule.ACCEPTANCE_RULE_COUPLED
        ),
    )
    assert (found.request_id, found.prompt, found.prompt_was_text) == ("mine", [5, 9], False)
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.top_p) == (0.5, 9, 0.25)
    assert (found.sampling.min_p, found.sampling.seed) == (1.0, 2**64 - 1)
    assert (found.max_length, len(found.stops), found.spec.eos_token_ids) == (CONTEXT, 16, frozenset())
    assert (found.resumed, found.drafter_names, found.spec.max_draft_tokens) == ([VOCABULARY - 1], ("a",), 3)


async def test_a_limit_is_lowered_to_the_context_if_the_caller_wants(reader: RequestReader) -> None:
    for prompt, length in ((2, 7), (CONTEXT - 3, CONTEXT)):
        found = await read(reader, token_ids=ids(*FULL[:prompt]), max_tokens=5, fit_max_tokens=True)
        assert found.max_length == length


async def test_a_suffix_is_part_of_the_prompt() -> None:
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    inner = AutoTokenizer.from_pretrained(MODELS / "target")
    inner.add_special_tokens({"additional_special_tokens": list(marks)})
    tokenizer = Tokenizer(inner)
    reader = RequestReader(tokenizer, len(inner), CONTEXT, kv_tokens=1000, pool=TextPool())
    found = await reader.read(pb.GenerateRequest(text="def f", suffix="return x"))
    assert tokenizer.decode(found.prompt, skip_special_tokens=False) == "".join(
        (marks[0], "def f", marks[1], "return x", marks[2])
    )
    assert [inner.convert_tokens_to_ids(mark) in found.prompt for mark in marks] == [True] * 3
    reader.close()


async def test_an_answer_is_a_text_of_its_own_unless_it_is_continued() -> None:
    inner = AutoTokenizer.from_pretrained(MODELS / "target")
    inner.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    reader = RequestReader(Tokenizer(inner), len(inner), CONTEXT, kv_tokens=1000, pool=TextPool())
    asked = pb.ChatMessages(messages=[pb.ChatMessage(role="assistant", content="def f")])
    begun = pb.ChatMessages(messages=asked.messages, continue_final_message=True)
    prompts: list[dict[str, Any]] = [{"text": "def f"}, {"messages": asked}, {"messages": begun}]
    found = [await reader.read(pb.GenerateRequest(**prompt)) for prompt in prompts]
    assert [each.is_answer for each in found] == [False, True, False]
    reader.close()


async def test_a_text_with_a_token_that_the_target_lacks_is_refused() -> None:
    """Some tokenizers have added tokens beyond the vocabulary of their models, which stop at such an id."""
    inner = AutoTokenizer.from_pretrained(MODELS / "target")
    size = len(inner)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    inner.add_special_tokens({"additional_special_tokens": ["<image>"]})
    inner.chat_template = template
    reader = RequestReader(Tokenizer(inner), size, CONTEXT, kv_tokens=1000, pool=TextPool())
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="an <image>")])
    for kind, request in (
        ("text", pb.GenerateRequest(text="an <image>")),
        ("messages", pb.GenerateRequest(messages=chat)),
    ):
        with pytest.raises(ServiceError, match=f"{kind}: has the token '<image>' with the id {size}, but") as found:
            await reader.read(request)
        assert found.value.reason_name == "TOKEN_OUT_OF_RANGE"
    assert (await reader.read(pb.GenerateRequest(text="an image"))).prompt
    reader.close()


async def test_changes_to_the_logits_are_taken(reader: RequestReader) -> None:
    assert (await read(reader)).changes == NO_CHANGES
    found = await read(
        reader,
        sampling=SamplingParams(
            typical_p=0.5,
            repetition_penalty=1.5,
            presence_penalty=-2.0,
            frequency_penalty=0.25,
            logit_bias={7: -100.0},
            allowed_token_ids=[4, 5],
            banned_token_ids=[6],
        ),
        min_tokens=5,
        max_tokens=5,
    )
    assert found.sampling.typical_p == 0.5
    assert found.changes == LogitChanges(1.5, -2.0, 0.25, {7: -100.0}, (4, 5), (6,), (), 5)


async def test_a_bad_word_is_spelled_with_a_space_before_it_and_without() -> None:
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    reader = RequestReader(tokenizer, 4096, CONTEXT, kv_tokens=1000, pool=TextPool())
    found = await read(reader, sampling=SamplingParams(bad_words=["return", "  return", " ", "subtraction first"]))
    texts = [tokenizer.decode(word) for word in found.changes.bad_words]
    assert texts == ["return", " return", " ", "  ", "subtraction first", " subtraction first"]
    assert min(len(word) for word in found.changes.bad_words) == 1 < len(found.changes.bad_words[-1])


async def test_a_bad_word_without_a_space_is_found_where_each_text_begins_with_one() -> None:
    """Tokenizers as Llama 2's put a space before a word, too, that is a text of its own."""
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_tokenizers.backend("spaced")))
    reader = RequestReader(tokenizer, 4096, CONTEXT, kv_tokens=1000, pool=TextPool())
    found = await read(reader, sampling=SamplingParams(bad_words=["self"]))
    spelled = {tuple(tokenizer.texts.of(token).text for token in word) for word in found.changes.bad_words}
    assert spelled >= {("self",), (" ", "self")}
    reader.close()


async def test_a_word_the_target_has_no_token_for_cannot_come(checkpoint: Path) -> None:
    reader = RequestReader(Tokenizer.load(str(checkpoint)), 5, CONTEXT, kv_tokens=1000, pool=TextPool())
    found = await read(reader, token_ids=ids(3), sampling=SamplingParams(bad_words=["w1", "w9 w1"]))
    assert found.changes.bad_words == ((4,),)


@pytest.mark.parametrize("options", [SpeculationOptions(enabled=False), SpeculationOptions(max_draft_tokens=0)])
async def test_a_request_may_do_without_speculation(reader: RequestReader, options: SpeculationOptions) -> None:
    assert not (await read(reader, speculation=options)).speculate


async def test_rejected_draft_tokens_are_told_when_asked_for(reader: RequestReader) -> None:
    assert not (await read(reader)).spec.report_rejected
    assert (await read(reader, report_rejected=True)).spec.report_rejected


async def test_a_request_may_be_private(reader: RequestReader) -> None:
    assert not (await read(reader)).private
    assert (await read(reader, private=True)).private


async def test_text_becomes_tokens(reader: RequestReader) -> None:
    found = await read(reader, text="w1 w2")
    assert (found.prompt, found.prompt_was_text) == ([4, 5], True)


async def test_a_small_kv_cache_is_the_limit_and_is_named(checkpoint: Path) -> None:
    reader = RequestReader(Tokenizer.load(str(checkpoint)), VOCABULARY, CONTEXT, kv_tokens=10, pool=TextPool())
    assert (await read(reader)).max_length == 10
    with pytest.raises(ServiceError, match="KV cache"):
        await read(reader, token_ids=ids(*FULL[:10]))


@pytest.mark.parametrize("fields", [{"text": "w1 w2"}, {"token_ids": ids(4, 5)}])
async def test_a_preset_is_chosen_by_the_prompt_however_it_is_given(
    reader: RequestReader, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed request, which carries the prompt's ids, therefore gets the same preset."""
    seen: list[str] = []

    def looks_like(prompt: str) -> AcceptancePreset:
        seen.append(prompt)
        return AcceptancePreset.ACCEPTANCE_PRESET_JSON

    monkeypatch.setattr(acceptance_reader, "looks_like", looks_like)
    found = await read(reader, **fields, **rule(4))
    assert (found.preset, found.acceptance.threshold) == (AcceptancePreset.ACCEPTANCE_PRESET_JSON, 0.65)
    assert seen == ["w1 w2"]


async def test_a_rule_that_makes_no_difference_is_the_coupled_one(reader: RequestReader) -> None:
    for fields in (
        {**rule(4), **sampling(temperature=0.0)},
        rule(2, enabled=False),
        rule(3, max_draft_tokens=0),
    ):
        found = await read(reader, **fields)
        assert (found.acceptance, found.preset) == (COUPLED, AcceptancePreset.ACCEPTANCE_PRESET_UNSPECIFIED)
