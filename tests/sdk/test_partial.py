"""Partial results of failed requests."""

from __future__ import annotations

import logging

import pytest
from grpc import StatusCode

from draftwire import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    EmptyPromptError,
    ErrorReason,
    Generation,
    InternalError,
)
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK


def check(error: DeadlineExceededError, seconds: float) -> bool:
    """Checks the error; returns whether the request had begun."""
    assert error.reason is ErrorReason.DEADLINE_EXCEEDED
    assert error.message.startswith(f"timeout of {seconds} s ran out ")
    if error.partial is None:
        assert "before the request began" in error.message
        return False
    tokens = error.partial.token_ids
    assert tokens == expected_ids(5, len(tokens))
    assert f"after {len(tokens)} tokens (max_time ends a request with the text so far)" in error.message
    assert (error.partial.text, error.partial.finish_reason) == (text_of(tokens), "deadline")
    assert (error.partial.seed, error.partial.prompt_token_ids) == (5, PROMPT_IDS)
    assert error.partial.usage.completion_tokens == len(tokens)
    assert error.partial.usage.prompt_tokens == len(PROMPT_IDS)
    return len(tokens) == 6


SECONDS = (0.5, 5.0, 50.0)  # on a busy machine it may expire before all expected tokens have arrived


def test_a_timeout_keeps_the_text(verifier: FakeVerifier) -> None:
    verifier.hang_after = 6
    with Client(verifier.address) as client:
        for seconds in SECONDS:
            with pytest.raises(DeadlineExceededError) as caught:
                client.generate(PROMPT, seed=5, max_tokens=20, timeout=seconds)
            if check(caught.value, seconds):
                return
    pytest.fail("the tokens never came")


async def test_a_timeout_keeps_the_text_with_asyncio(verifier: FakeVerifier) -> None:
    verifier.hang_after = 6
    for seconds in SECONDS:
        async with AsyncClient(verifier.address, timeout=seconds) as client:
            with pytest.raises(DeadlineExceededError) as caught:
                async for _ in client.stream(PROMPT, seed=5, max_tokens=20):
                    pass
        if check(caught.value, seconds):
            return
    pytest.fail("the tokens never came")


async def test_other_errors_keep_it_too(verifier: FakeVerifier) -> None:
    verifier.break_after = [4, 4]
    verifier.break_status = rich_status(StatusCode.INTERNAL, "a fault", "INTERNAL")

    def kept(partial: Generation | None) -> None:
        assert partial is not None
        assert (partial.token_ids, partial.finish_reason) == (expected_ids(5, 4), "error")

    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as client, pytest.raises(InternalError) as caught:
        client.generate(PROMPT, seed=5, max_tokens=20)
    kept(caught.value.partial)
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(InternalError) as caught:
            await client.generate(PROMPT, seed=5, max_tokens=20)
    kept(caught.value.partial)


def test_what_came_over_the_wire_is_logged_at_debug(
    client: Client, verifier: FakeVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "text: has no tokens", "EMPTY_PROMPT", ("text",)))
    with (
        caplog.at_level(logging.DEBUG, "draftwire"),
        pytest.raises(EmptyPromptError, match=r"^prompt: has no tokens") as caught,
    ):
        client.generate("")
    assert "INVALID_ARGUMENT: text: has no tokens" in caplog.text
    assert caught.value.details == "text: has no tokens"


def test_a_stream_has_cancel(client: Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    stream = client.stream(PROMPT, max_tokens=20)
    next(stream)
    stream.cancel()
    assert verifier.cancelled.wait(PATIENCE)
    assert list(stream) == []
