"""Batches with a failing request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from grpc import StatusCode

from draftwire import (
    AsyncClient,
    Client,
    DraftwireError,
    EmptyPromptError,
    Generation,
    InternalError,
    InvalidFieldError,
    RequestCancelledError,
    TokenOutOfRangeError,
)
from draftwire._calls.batch import Batch, run_batch, run_batch_async
from draftwire._messages.requests import Request
from tests.harness.stand_ins.fake_verifier import FakeVerifier, expected_ids, rich_status
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK


def empty(field: str = "text") -> object:
    return rich_status(StatusCode.INVALID_ARGUMENT, f"{field}: has no tokens", "EMPTY_PROMPT", (field,))


def check_the_second_failed(error: EmptyPromptError) -> None:
    assert str(error).startswith("prompts[1]: has no tokens")
    assert error.fields == ("prompts[1]",)
    assert error.results is not None
    first, second, third = error.results
    assert isinstance(first, Generation)
    assert isinstance(third, Generation)
    assert first.token_ids == expected_ids(5, 4, [97])
    assert third.token_ids == expected_ids(5, 4, [98])
    assert second is error


def test_the_error_names_the_prompt_and_has_the_other_results(verifier: FakeVerifier) -> None:
    verifier.fails_for[""] = empty()
    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(EmptyPromptError) as caught:
            client.generate_batch(["a", "", "b"], max_tokens=4, seed=5)
        check_the_second_failed(caught.value)


async def test_the_same_with_asyncio(verifier: FakeVerifier) -> None:
    verifier.fails_for[""] = empty()
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(EmptyPromptError) as caught:
            await client.generate_batch(["a", "", "b"], max_tokens=4, seed=5)
        check_the_second_failed(caught.value)


async def test_errors_in_their_places(verifier: FakeVerifier) -> None:
    verifier.fails_for["bad"] = rich_status(
        StatusCode.INVALID_ARGUMENT, "sampling.top_p: is wrong", "INVALID_FIELD", ("sampling.top_p",)
    )

    def check(found: list[Generation | DraftwireError]) -> None:
        first, second, third, last = found
        assert isinstance(first, Generation)
        assert isinstance(last, Generation)
        assert isinstance(second, InvalidFieldError)
        assert str(second) == "prompts[1]: top_p: is wrong"
        assert second.fields == ("sampling.top_p",)
        assert isinstance(third, TokenOutOfRangeError)
        assert str(third) == "prompts[2][0]: -1 is not a token id"

    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        check(client.generate_batch(["a", "bad", [-1], "b"], max_tokens=4, return_exceptions=True))
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        check(await client.generate_batch(["a", "bad", [-1], "b"], max_tokens=4, return_exceptions=True))


async def test_what_was_cancelled_keeps_its_text(verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    verifier.fails_for["bad"] = rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",))
    verifier.gathers = 2

    def check(error: InvalidFieldError) -> None:
        assert error.results is not None
        assert str(error) == "prompts[1]: no (max_tokens: is wrong)"
        first, second = error.results
        assert second is error
        assert isinstance(first, RequestCancelledError)
        if first.partial is not None:  # its progress before the other failed depends on timing
            assert first.partial.token_ids == expected_ids(5, len(first.partial.token_ids), [97])
            assert first.partial.finish_reason == "error"

    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(InvalidFieldError) as caught:
            client.generate_batch(["a", "bad"], max_tokens=8, seed=5)
        check(caught.value)
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(InvalidFieldError) as caught:
            await client.generate_batch(["a", "bad"], max_tokens=8, seed=5)
        check(caught.value)


class CountedTask(asyncio.Task[Any]):
    waits = 0
    """Callbacks for the ends of all tasks."""

    def add_done_callback(self, *arguments: Any, **more: Any) -> None:
        CountedTask.waits += 1
        super().add_done_callback(*arguments, **more)


class CountedStream:
    """The stream of a request, which fails if it is the last of some."""

    def __init__(self, begun: list[CountedStream], fails: int) -> None:
        self.ends = 0
        begun.append(self)
        self._fails = len(begun) == fails

    def cancel(self) -> None:
        self.ends += 1

    close = cancel

    def finish(self) -> None:
        if self._fails:
            raise InternalError("a fault")

    async def finish_later(self) -> None:
        await asyncio.sleep(0)
        self.finish()


async def test_work_on_a_request_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it did for each end of one, so that thousands of prompts held up an event loop for minutes."""
    count, run, run_later = 100, cast(Any, run_batch), cast(Any, run_batch_async)
    requests = [Request.of("a", seed=1)] * count
    begun: list[CountedStream] = []
    monkeypatch.setattr(CountedTask, "waits", 0)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work, **more: CountedTask(work, loop=loop, **more))
    await run_later(Batch(requests), 1, lambda _: CountedStream(begun, 0), CountedStream.finish_later)
    loop.set_task_factory(None)
    assert len(begun) == count and CountedTask.waits < 5 * count

    begun.clear()
    await run_later(Batch(requests), 1, lambda _: CountedStream(begun, 50), CountedStream.finish_later)
    assert len(begun) >= 50 and max(each.ends for each in begun) == 1
    begun.clear()
    run(Batch(requests), 1, lambda _: CountedStream(begun, 50), CountedStream.finish)
    assert len(begun) >= 50 and max(each.ends for each in begun) <= 2


def test_prompts_that_cannot_be_sent() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=r"^prompts\[1\]: expected a string or a sequence of token ids, got None"):
            client.generate_batch(["a", None])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"^prompts\[0\]\[2\]: expected an int"):
            client.generate_batch([[1, 2, "3"]])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"^prompt_logprobs: expected an int"):
            client.generate_batch(["a"], prompt_logprobs="prompt: x")  # type: ignore[call-overload]
        with pytest.raises(TokenOutOfRangeError) as caught:
            client.generate_batch(["a", [1, -1]])
        assert caught.value.fields == ("prompts[1][1]",)


@pytest.mark.parametrize("prompts", ["ab", {"a": "b"}, b"ab", 5])
async def test_what_is_no_list_of_prompts(prompts: Any) -> None:
    words = r"^prompts: expected a list of texts or of lists of token ids, got "
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match=words):
        client.generate_batch(prompts)
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=words):
            await client.generate_batch(prompts)


@pytest.mark.parametrize("most", [0, -1])
async def test_a_concurrency_that_is_none(verifier: FakeVerifier, most: int) -> None:
    words = f"^max_concurrency: must be at least 1, got {most}$"
    with Client(verifier.address) as client, pytest.raises(InvalidFieldError, match=words):
        client.generate_batch(["a"], max_concurrency=most)
    async with AsyncClient(verifier.address) as client:
        with pytest.raises(InvalidFieldError, match=words):
            await client.generate_batch(["a"], max_concurrency=most)
    assert not verifier.calls


def test_half_a_surrogate_pair_is_one_prompts_fault(verifier: FakeVerifier) -> None:
    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        first, second = client.generate_batch(["a", "b\ud83d"], max_tokens=2, return_exceptions=True)
    assert isinstance(first, Generation)
    assert isinstance(second, InvalidFieldError)
    assert str(second).startswith("prompts[1]: not valid Unicode")


def test_choices_are_one_request(verifier: FakeVerifier) -> None:
    verifier.fails_for["bad"] = empty()
    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(EmptyPromptError) as caught:
            client.generate("bad", n=3)
        assert str(caught.value).startswith("prompt: has no tokens")
        assert caught.value.results is None


def test_a_batch_of_nothing() -> None:
    assert Batch.of([], None, {}, keeps_errors=False).outcomes() == []
