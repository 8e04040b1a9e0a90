"""Large requests are encoded off the event loop of the asyncio client, whichever method makes them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from draftwire import AsyncClient, InvalidFieldError, Speculation, TokenOutOfRangeError, UnimplementedError
from draftwire._calls.async_transport import AsyncTransport
from draftwire._messages import off_loop, requests
from draftwire._messages.off_loop import is_large
from draftwire._messages.reading import GenerationReader
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK

MANY = 4096


class Turn(dict[str, str]):
    """A message that records the threads that read it."""

    threads: set[int]

    def get(self, *key: Any) -> Any:
        self.threads.add(threading.get_ident())
        return super().get(*key)


class Ids(Sequence[int]):
    """Token ids that record the threads that read them."""

    def __init__(self, count: int) -> None:
        self.threads: set[int] = set()
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        self.threads.add(threading.get_ident())
        return iter([1] * self._count)


def turns(count: int, threads: set[int]) -> list[Turn]:
    made = [Turn(role="user", content="a") for _ in range(count)]
    for each in made:
        each.threads = threads
    return made


@pytest.fixture
async def client(verifier: FakeVerifier) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


@pytest.mark.parametrize("given", [list, iter], ids=["list", "iterator"])
async def test_a_long_conversation(client: AsyncClient, given: Callable[[Iterable[Turn]], Any]) -> None:
    threads: set[int] = set()
    here = threading.get_ident()
    await client.chat(given(turns(MANY, threads)), max_tokens=1)
    assert threads and here not in threads
    threads.clear()
    await client.tokenize(messages=given(turns(MANY, threads)))
    assert threads and here not in threads
    threads.clear()
    await client.chat(given(turns(2, threads)), max_tokens=1)
    assert threads == {here}


async def test_many_token_ids(client: AsyncClient) -> None:
    ids = Ids(100_000)
    await client.generate(ids, max_tokens=1)
    assert ids.threads and threading.get_ident() not in ids.threads


async def test_what_is_wrong_with_a_long_conversation_is_told_as_ever(client: AsyncClient) -> None:
    with pytest.raises(InvalidFieldError, match=r"messages\[4096\]: expected the keys role and content"):
        await client.chat([*turns(MANY, set()), {"role": "user"}])
    with pytest.raises(TypeError, match=r"messages: expected a list of mappings"):
        await client.chat("a" * MANY)  # type: ignore[arg-type]


LONG, SHORT = "a" * 20_000, "a"
ENOUGH = 256
"""Size from which values are large in these tests: less than LONG, as a text, as token ids and as a message."""


async def streamed(stream: Any) -> None:
    async for _ in stream:
        pass


async def scored(client: AsyncClient, text: list[int]) -> None:
    with pytest.raises(UnimplementedError):  # the stand-in has no model that could score
        await client.score(text)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


CALLS: dict[str, Callable[[AsyncClient, str], Awaitable[Any]]] = {
    "generate": lambda client, text: client.generate(text, max_tokens=1),
    "token ids": lambda client, text: client.generate(ids(text), max_tokens=1),
    "choices": lambda client, text: client.generate(text, n=2, max_tokens=1),
    "prediction": lambda client, text: client.generate("a", speculation=Speculation(prediction=text), max_tokens=1),
    "stream": lambda client, text: streamed(client.stream(text, max_tokens=1)),
    "chat": lambda client, text: client.chat(said(text), max_tokens=1),
    "stream_chat": lambda client, text: streamed(client.stream_chat(said(text), max_tokens=1)),
    "generate_batch": lambda client, text: client.generate_batch([text, ids(text)], max_tokens=1),
    "tokenize": lambda client, text: client.tokenize(text),
    "tokenize a conversation": lambda client, text: client.tokenize(messages=said(text)),
    "detokenize": lambda client, text: client.detokenize(ids(text)),
    "score": lambda client, text: scored(client, ids(text)),
}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that made messages of options, or encoded messages."""
    found: set[int] = set()
    encoded, write_options = AsyncTransport.encoded, requests.write_options

    def encode(self: AsyncTransport, request: Message) -> Any:
        found.add(threading.get_ident())
        return encoded(self, request)

    def write(*args: Any) -> None:
        found.add(threading.get_ident())
        write_options(*args)

    monkeypatch.setattr(AsyncTransport, "encoded", encode)
    monkeypatch.setattr(requests, "write_options", write)
    monkeypatch.setattr(off_loop, "_LARGE", ENOUGH)
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_every_method(
    client: AsyncClient, threads: set[int], call: Callable[[AsyncClient, str], Awaitable[Any]]
) -> None:
    here = threading.get_ident()
    await call(client, SHORT)
    assert threads == {here}
    threads.clear()
    await call(client, LONG)
    assert threads and here not in threads


async def test_large_responses_are_read_off_the_loop(
    client: AsyncClient, threads: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_started = GenerationReader._read_started

    def read(self: GenerationReader, started: Any) -> None:
        threads.add(threading.get_ident())
        read_started(self, started)

    monkeypatch.setattr(GenerationReader, "_read_started", read)
    for prompt, on_the_loop in ((SHORT, True), (LONG, False)):  # a verifier returns the ids of a text
        threads.clear()
        result = await client.generate(prompt, max_tokens=1)
        assert result.prompt_token_ids == ids(prompt)
        assert (threading.get_ident() in threads) == on_the_loop


@pytest.mark.usefixtures("threads")
async def test_what_is_wrong_with_a_long_prompt_is_raised_while_iterating(client: AsyncClient) -> None:
    stream = client.stream([*ids(LONG), -1])
    with pytest.raises(TokenOutOfRangeError, match=r"prompt\[20000\]: -1 is not a token id"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises(TokenOutOfRangeError, match=r"prompts\[1\]\[20000\]: -1 is not a token id"):
        await client.generate_batch(["a", [*ids(LONG), -1]])


@pytest.mark.usefixtures("threads")
async def test_a_stream_that_is_closed_while_its_request_is_encoded_is_no_load(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    prepare = AsyncTransport.prepare

    def slow(*args: Any) -> Any:
        begun.set()
        goes_on.wait(PATIENCE)
        try:
            return prepare(*args)
        finally:
            ended.set()

    monkeypatch.setattr(AsyncTransport, "prepare", slow)
    stream = client.stream(LONG)
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    stream.cancel()
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while any(each.in_flight for each in client.verifiers):  # noqa: ASYNC110 - the thread ends the attempt
            await asyncio.sleep(0.01)


def test_what_is_large() -> None:
    many = 20_000
    for value in ("a" * 2_000_000, [1] * many, range(many), [["a"]] * many, said("a") * 300, {"a": [{}] * 300}):
        assert is_large(value), str(value)[:50]
    for value in ("a" * 500_000, [1] * 10_000, range(1000), said("a") * 100, None, 1.5, b"", {}, [[]]):
        assert not is_large(value), str(value)[:50]
