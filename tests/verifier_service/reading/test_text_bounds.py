"""No text is processed before it is known to fit, and a text being processed counts against its peer's limits."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import Prediction, SpeculationOptions
from draftwire.v1.structured_output_pb2 import Choices, StructuredOutput
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.byte_tokenizers import write_byte_checkpoint
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE
from verifier_service.servicer import VerifierServicer

MEGABYTES = 15_000_000
LARGE = "def f(x):\n    return x\n" * (MEGABYTES // 22)


class From:
    """The context of a call from a host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def peer(self) -> str:
        return f"ipv4:{self._host}:4242"

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None: ...


CONTEXT, OTHER = From("10.0.0.7"), From("10.0.0.8")
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.role == 'echo' %}{{ m.content * 40 }}{% endif %}\n"
    "{% endfor %}[assistant]"
)


@pytest.fixture(scope="module")
def talking_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_byte_checkpoint(tmp_path_factory.mktemp("talking"), "target")
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    return directory


@pytest.fixture
async def talking(services: Services, talking_checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(talking_checkpoint, max_requests_per_peer=2) as made:
        yield made


class Watched:
    """Counts the calls of a verifier's own tokenizer, and delays them where a test asks for it."""

    def __init__(self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.go_on = threading.Event()
        self.go_on.set()
        tokenizer = verifier.verifier.model.tokenizer
        for name in ("encode", "encode_with_offsets", "decode", "render_chat"):
            monkeypatch.setattr(tokenizer, name, self._around(name, getattr(tokenizer, name)))

    def _around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            # The event loop decodes output tokens as well.
            assert name == "decode" or self.go_on.wait(PATIENCE)
            return work(*arguments, **options)

        return counted


@pytest.fixture
def watched(talking: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(talking, monkeypatch)
    yield made
    made.go_on.set()


def turns(*contents: str, role: str = "user") -> pb.ChatMessages:
    return pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content) for content in contents])


def chat(*messages: pb.ChatMessage, tools: Sequence[pb.ChatTool] = ()) -> pb.ChatMessages:
    return pb.ChatMessages(messages=messages or [pb.ChatMessage(role="user", content="x")], tools=tools)


def calling(calls: int) -> pb.ChatMessage:
    """A message with empty calls, of two bytes each."""
    return pb.ChatMessage(role="assistant", tool_calls=[pb.ChatToolCall()] * calls)


def predicting(**fields: Any) -> dict[str, Any]:
    return {"speculation": SpeculationOptions(prediction=Prediction(**fields))}


MANY = [5] * 4_000_000
MESSAGES = ["x"] * 50_000
LARGE_REQUESTS: dict[str, tuple[Callable[[], pb.GenerateRequest], str]] = {
    "text": (lambda: pb.GenerateRequest(text=LARGE), "text"),
    "one message": (lambda: pb.GenerateRequest(messages=turns(LARGE)), "messages"),
    "a role": (lambda: pb.GenerateRequest(messages=turns("x", role=LARGE)), "messages"),
    "many messages": (lambda: pb.GenerateRequest(messages=turns(*MESSAGES)), "messages.messages"),
    "the id of a result": (
        lambda: pb.GenerateRequest(messages=chat(pb.ChatMessage(role="tool", tool_call_id=LARGE))),
        "messages",
    ),
    "many tools": (
        lambda: pb.GenerateRequest(messages=chat(tools=[pb.ChatTool()] * 50_000)),
        "messages.tools",
    ),
    "many calls": (
        lambda: pb.GenerateRequest(messages=chat(*[calling(500)] * 10)),
        "messages.messages[2].tool_calls",
    ),
    "a prediction": (lambda: order(**predicting(text=LARGE)), "speculation.prediction.text"),
    "prompt ids": (lambda: order(MANY), "token_ids"),
    "resumed ids": (lambda: order(resume_token_ids=MANY), "resume_token_ids"),
}
"""Each makes its request when a test needs it: together they take seconds, which each worker would spend on
collecting."""


async def refusal(call: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        async with asyncio.timeout(PATIENCE):
            await call
    return caught.value


def first_event(talking: InProcessVerifier, request: pb.GenerateRequest, context: Any = CONTEXT) -> Any:
    return anext(VerifierServicer(talking.verifier).Generate(request, context))


@pytest.mark.parametrize("name", LARGE_REQUESTS)
async def test_a_request_that_cannot_fit_is_refused_unread(
    talking: InProcessVerifier, watched: Watched, name: str
) -> None:
    make, field = LARGE_REQUESTS[name]
    error = await refusal(first_event(talking, make()))
    assert (error.code.name, error.reason_name) == ("INVALID_ARGUMENT", "CONTEXT_EXCEEDED")
    assert [each.field for each in error.field_violations] == [field]
    assert not watched.calls
    assert talking.verifier.request_counts.refused == {"CONTEXT_EXCEEDED": 1}


async def test_the_refusal_says_how_many_bytes_and_how_many_there_may_be(talking: InProcessVerifier) -> None:
    error = await refusal(first_event(talking, pb.GenerateRequest(text=LARGE)))
    most = 1024 * talking.verifier.model.tokenizer.bytes_per_token
    assert f"text: has {len(LARGE)} bytes" in error.message
    assert f"at most {most}" in error.message


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: pb.TokenizeRequest(text=LARGE), "text"),
        (lambda: pb.TokenizeRequest(messages=turns(LARGE)), "messages"),
        (lambda: pb.TokenizeRequest(messages=turns(*MESSAGES)), "messages.messages"),
        (lambda: pb.DetokenizeRequest(token_ids=MANY), "token_ids"),
    ],
    ids=["text", "one message", "many messages", "ids"],
)
async def test_what_is_only_to_be_tokenized_is_bounded_too(
    talking: InProcessVerifier, watched: Watched, make: Callable[[], Any], field: str
) -> None:
    servicer, request = VerifierServicer(talking.verifier), make()
    method = servicer.Tokenize if isinstance(request, pb.TokenizeRequest) else servicer.Detokenize
    error = await refusal(method(request, CONTEXT))
    assert (error.reason_name, error.field_violations[0].field) == ("CONTEXT_EXCEEDED", field)
    assert error.metadata == {"max_sequence_tokens": "1024"}
    assert not watched.calls


async def test_a_text_of_the_greatest_size_is_read(talking: InProcessVerifier, watched: Watched) -> None:
    most = 1024 * talking.verifier.model.tokenizer.bytes_per_token
    servicer = VerifierServicer(talking.verifier)
    assert len((await servicer.Tokenize(pb.TokenizeRequest(text="x" * most), CONTEXT)).token_ids) > 1024
    assert (await refusal(servicer.Tokenize(pb.TokenizeRequest(text="x" * (most + 1)), CONTEXT))).reason_name
    assert watched.calls == {"encode_with_offsets": 1}
    error = await refusal(first_event(talking, pb.GenerateRequest(text="x" * most)))
    assert "tokens, which leaves no room" in error.message, "it fits by its bytes, not by its tokens"


async def test_what_a_template_makes_of_messages_is_bounded(talking: InProcessVerifier, watched: Watched) -> None:
    content = "x" * (1024 * talking.verifier.model.tokenizer.bytes_per_token // 10)
    error = await refusal(first_event(talking, pb.GenerateRequest(messages=turns(content, role="echo"))))
    assert (error.reason_name, error.field_violations[0].field) == ("CONTEXT_EXCEEDED", "messages")
    assert "once rendered by the chat template" in error.message
    assert watched.calls == {"render_chat": 1}, "and nothing is tokenized"


async def test_messages_are_not_looked_at_where_there_is_no_template(
    verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(verifier, monkeypatch)
    error = await refusal(first_event(verifier, pb.GenerateRequest(messages=turns(*MESSAGES))))
    assert "no chat template" in error.message
    assert not watched.calls


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"stop": [LARGE]},
        lambda: {"stop": ["x"] * 1_000_000},
        lambda: {"sampling": SamplingParams(temperature=-1.0)},
        lambda: {"sampling": SamplingParams(bad_words=[LARGE])},
        lambda: {"sampling": SamplingParams(logit_bias=dict.fromkeys(range(100_000), 1.0))},
        lambda: {"structured_output": StructuredOutput(choice=Choices(texts=["x" * 100_000] * 40))},
        lambda: {"speculation": SpeculationOptions(drafter=LARGE)},
        lambda: {"speculation": SpeculationOptions(drafter_names=["x"] * 1_000_000)},
        lambda: predicting(token_ids=MANY),
    ],
    ids=["stop", "stops", "temperature", "bad word", "biases", "choices", "drafter", "drafters", "predicted ids"],
)
async def test_other_fields_are_looked_at_before_a_text_is_read(
    talking: InProcessVerifier, watched: Watched, make: Callable[[], dict[str, Any]]
) -> None:
    fields = make()
    error = await refusal(first_event(talking, pb.GenerateRequest(text="self", **fields)))
    assert error.reason_name == "INVALID_FIELD"
    assert len(error.message) < 1000
    if fields.keys() & {"stop", "speculation"}:
        assert not watched.calls


# Texts that are being processed count.


async def generated(talking: InProcessVerifier, request: pb.GenerateRequest, context: Any = CONTEXT) -> int:
    events = VerifierServicer(talking.verifier).Generate(request, context)
    return sum([len(event.chunk.token_ids) async for event in events])


def asked(text: str = "self") -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, max_tokens=4, ignore_eos=True)


async def begin_reading(talking: InProcessVerifier, watched: Watched, number: int) -> list[asyncio.Task[int]]:
    watched.go_on.clear()
    tasks = [asyncio.create_task(generated(talking, asked())) for _ in range(number)]
    await talking.until(lambda: talking.verifier._admission.being_read == number)
    await talking.until(lambda: watched.calls["encode"])
    return tasks


async def test_a_request_that_is_being_read_counts_for_its_peer(talking: InProcessVerifier, watched: Watched) -> None:
    tasks = await begin_reading(talking, watched, 2)
    error = await refusal(first_event(talking, order()))
    assert (error.reason_name, error.message) == (
        "AT_CAPACITY",
        "2 requests of 10.0.0.7 are running or waiting; at most 2 may "
        "(--max-requests-per-peer, or max_requests in the file of --accepted-tokens)",
    )
    assert await generated(talking, order(max_tokens=3), OTHER) == 3
    watched.go_on.set()
    assert await asyncio.gather(*tasks) == [4, 4]
    assert await generated(talking, asked()) == 4, "they count no longer"


async def test_one_whose_caller_is_gone_counts_no_longer(talking: InProcessVerifier, watched: Watched) -> None:
    tasks = await begin_reading(talking, watched, 2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert talking.verifier._admission.being_read == 0
    assert await generated(talking, order(max_tokens=3)) == 3
    assert watched.calls == {"encode": 1, "decode": watched.calls["decode"]}, "the one that waited is never tokenized"


async def test_one_that_is_refused_counts_no_longer(talking: InProcessVerifier, watched: Watched) -> None:
    for request in (pb.GenerateRequest(text=""), pb.GenerateRequest(text=LARGE), asked("self " * 2000)):
        for _ in range(3):
            assert (await refusal(first_event(talking, request))).code.name == "INVALID_ARGUMENT"
    assert talking.verifier._admission.being_read == 0
    assert await asyncio.gather(*(generated(talking, asked()) for _ in range(2))) == [4, 4]


async def test_texts_to_tokenize_are_counted_by_peer(talking: InProcessVerifier, watched: Watched) -> None:
    watched.go_on.clear()
    servicer = VerifierServicer(talking.verifier)
    held = [asyncio.create_task(servicer.Tokenize(pb.TokenizeRequest(text="self"), CONTEXT)) for _ in range(2)]
    await talking.until(lambda: watched.calls["encode_with_offsets"])
    for call in (
        servicer.Tokenize(pb.TokenizeRequest(text="self"), CONTEXT),
        servicer.Detokenize(pb.DetokenizeRequest(token_ids=[5]), CONTEXT),
    ):
        assert (await refusal(call)).reason_name == "AT_CAPACITY"
    others = asyncio.create_task(servicer.Tokenize(pb.TokenizeRequest(text="self"), OTHER))
    await asyncio.sleep(0)
    held[1].cancel()  # a waiting one
    await asyncio.wait(held[1:])
    watched.go_on.set()
    assert (await held[0]).token_ids == (await others).token_ids
    assert watched.calls["encode_with_offsets"] == 2


async def test_a_request_that_is_being_read_counts_among_those_that_wait(
    services: Services, talking_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with services.in_process_verifier(talking_checkpoint, max_sequences=1, max_waiting=1) as verifier:
        watched = Watched(verifier, monkeypatch)
        tasks = await begin_reading(verifier, watched, 2)
        assert (await refusal(first_event(verifier, order()))).message == (
            "2 requests are running or waiting; at most 2 may (--max-sequences and --max-waiting)"
        )
        watched.go_on.set()
        assert await asyncio.gather(*tasks) == [4, 4]
