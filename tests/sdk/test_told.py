"""Log-probabilities, prompt reports and several results per call, against a verifier without a model."""

from typing import Any

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, Client, InvalidFieldError, PromptReport, Tokenization, TokenLogProb
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK

ASKED: dict[str, Any] = {"logprobs": 2, "prompt_logprobs": 1, "echo": True}
MESSAGES = [{"role": "user", "content": "hi"}]


def test_log_probabilities(client: Client) -> None:
    r = client.generate(PROMPT, max_tokens=5, seed=5, **ASKED)
    assert [each.token.token_id for each in r.logprobs] == r.token_ids
    first = r.token_ids[0]
    assert r.logprobs[0].token == TokenLogProb(first, -first, chr(first), chr(first).encode())
    assert r.logprobs[0].rank == 2
    assert [each.token_id for each in r.logprobs[0].top] == [first, first + 1]
    assert r.text_offsets == [0, 1, 2, 3, 4]


def whole_prompt(prompt: PromptReport | None) -> bool:
    assert prompt is not None
    assert (prompt.text, prompt.token_ids) == (PROMPT, PROMPT_IDS)
    assert prompt.token_texts == list(PROMPT)
    assert prompt.text_offsets == list(range(len(PROMPT)))
    assert prompt.logprobs[0] is None
    assert [each.token.token_id for each in prompt.logprobs[1:] if each] == PROMPT_IDS[1:]
    return True


def test_a_prompt_that_is_reported_in_parts(client: Client) -> None:
    with client.stream(PROMPT, max_tokens=4, **ASKED) as stream:
        assert stream.prompt is None
        next(stream)
        assert whole_prompt(stream.prompt)
        list(stream)
    assert whole_prompt(stream.result.prompt)
    assert client.generate(PROMPT, max_tokens=4).prompt is None


def test_a_report_that_breaks_off_is_asked_for_again(client: Client, verifier: FakeVerifier) -> None:
    verifier.breaks_in_prompt = 1
    assert whole_prompt(client.generate(PROMPT, max_tokens=4, **ASKED).prompt)
    assert [request.echo for request in verifier.requests] == [True, True]


def test_one_that_is_whole_is_not(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after.append(2)
    r = client.generate(PROMPT, max_tokens=6, seed=5, **ASKED)
    assert r.resumes == 1
    assert whole_prompt(r.prompt)
    again = verifier.requests[1]
    assert (again.echo, again.HasField("prompt_log_probs"), again.log_probs) == (False, False, 2)
    assert [each.token.token_id for each in r.logprobs] == r.token_ids == expected_ids(5, 6)
    assert r.text_offsets == list(range(6))


class TestChoices:
    def test_each_is_what_its_seed_gives_alone(self, client: Client, verifier: FakeVerifier) -> None:
        verifier.gathers = 2
        r = client.generate(PROMPT, n=4, max_tokens=6, seed=2**64 - 2, request_id="mine")
        assert verifier.most_running > 1
        assert r.choices == [r, *r.further]
        assert [each.seed for each in r.choices] == [2**64 - 2, 2**64 - 1, 0, 1]
        assert [each.request_id for each in r.choices] == ["mine", "mine-1", "mine-2", "mine-3"]
        for each in r.choices:
            assert each.token_ids == client.generate(PROMPT, max_tokens=6, seed=each.seed).token_ids

    def test_one(self, client: Client) -> None:
        r = client.generate(PROMPT, max_tokens=2)
        assert r.choices == [r]

    def test_of_a_conversation_that_is_read_once(self, client: Client) -> None:
        r = client.chat(iter(MESSAGES), n=2, max_tokens=4, seed=1)
        assert [each.token_ids for each in r.choices] == [
            expected_ids(seed, 4, [ord(letter) for letter in "userhi"]) for seed in (1, 2)
        ]

    def test_seeds_are_fixed_by_the_sdk(self, client: Client) -> None:
        first, second = client.generate(PROMPT, n=2, max_tokens=2).choices
        assert second.seed == (first.seed + 1) % 2**64

    @pytest.mark.parametrize("n", [0, -1, 129])
    def test_numbers_out_of_range(self, client: Client, n: int) -> None:
        with pytest.raises(InvalidFieldError) as caught:
            client.generate(PROMPT, n=n)
        assert [each.field for each in caught.value.field_violations] == ["n"]

    def test_one_failure_cancels_the_others(self, client: Client, verifier: FakeVerifier) -> None:
        verifier.hang_after = 2
        verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",)))
        with pytest.raises(InvalidFieldError):
            client.generate(PROMPT, n=3, max_tokens=8)
        assert verifier.is_idle()

    async def test_with_asyncio(self, verifier: FakeVerifier) -> None:
        verifier.gathers = 2
        async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
            r = await client.generate(PROMPT, n=3, max_tokens=6, seed=5, **ASKED)
            assert verifier.most_running > 1
            assert [each.token_ids for each in r.choices] == [expected_ids(seed, 6) for seed in (5, 6, 7)]
            assert all(whole_prompt(each.prompt) for each in r.choices)
            assert len((await client.chat(MESSAGES, n=2, max_tokens=2)).choices) == 2
            with pytest.raises(InvalidFieldError, match="n: must be from 1 to 128"):
                await client.generate(PROMPT, n=0)


class TestTokenization:
    def test_a_text(self, client: Client) -> None:
        assert client.tokenization("ab") == Tokenization([97, 98], [0, 1], ["a", "b"])

    def test_a_conversation(self, client: Client) -> None:
        assert text_of(client.tokenize(messages=MESSAGES)) == "userhi"
        assert client.tokenization(messages=iter(MESSAGES)).text_offsets == list(range(6))

    def test_one_of_the_two(self, client: Client) -> None:
        for fields in ({}, {"text": "a", "messages": MESSAGES}):
            with pytest.raises(InvalidFieldError) as caught:
                client.tokenize(**fields)
            assert [each.field for each in caught.value.field_violations] == ["text"]

    @pytest.mark.parametrize(
        "given",
        [
            {"tools": [{"type": "function", "function": {"name": "clock"}}]},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"add_generation_prompt": False},
            {"continue_final_message": True},
        ],
    )
    @pytest.mark.parametrize("text", ["a", None])
    def test_what_applies_to_messages_alone(self, client: Client, text: str | None, given: dict[str, Any]) -> None:
        for tokenize in (client.tokenize, client.tokenization):
            with pytest.raises(InvalidFieldError, match="apply to messages, and none are given") as caught:
                tokenize(text, **given)
            assert [each.field for each in caught.value.field_violations] == ["messages"]
            tokenize(messages=MESSAGES, **given)

    async def test_with_asyncio(self, verifier: FakeVerifier) -> None:
        async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
            assert await client.tokenization("ab") == Tokenization([97, 98], [0, 1], ["a", "b"])
            assert text_of(await client.tokenize(messages=MESSAGES)) == "userhi"
