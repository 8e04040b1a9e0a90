"""Completions with OpenAI's client and a verifier without a model."""

import json
import threading
from typing import Any

import httpx
import openai
import pytest

from draftwire._messages import reading
from gateway_service.openai import completion_response
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, expected_ids, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier


async def test_the_text_and_what_is_told_with_it(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=5, seed=7)
    assert done.choices[0].text == text_of(expected_ids(7, 5))
    assert done.choices[0].finish_reason == "length"
    assert done.object == "text_completion" and done.model == "fake"
    assert done.system_fingerprint == "fp_"
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (5, 5, 10)
    told: Any = done
    assert told.speculation["steps"] == 3
    assert told.speculation["drafters"] == [{"name": "good", "draft_tokens": 6, "accepted_tokens": 2}]
    assert told.speculation["lossless"] is True


async def test_the_default_length_is_openais(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="fake", prompt=PROMPT, seed=7)
    assert done.choices[0].text == text_of(expected_ids(7, 16))


async def test_the_length_may_come_under_both_names(client: openai.AsyncOpenAI) -> None:
    """GuideLLM sends both to either endpoint."""
    done = await client.completions.create(
        model="fake", prompt=PROMPT, max_tokens=5, seed=7, extra_body={"max_completion_tokens": 5}
    )
    assert done.choices[0].text == text_of(expected_ids(7, 5))
    with pytest.raises(openai.BadRequestError, match="max_completion_tokens: is max_tokens here"):
        await client.completions.create(
            model="fake", prompt=PROMPT, max_tokens=5, extra_body={"max_completion_tokens": 6}
        )


async def test_choices_have_seeds_in_order(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=4, seed=7, n=3)
    assert [choice.text for choice in done.choices] == [text_of(expected_ids(seed, 4)) for seed in (7, 8, 9)]
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    assert done.usage is not None and done.usage.prompt_tokens == 5 and done.usage.completion_tokens == 12


async def test_a_seed_of_our_own_is_told_and_repeats(client: openai.AsyncOpenAI) -> None:
    first: Any = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=6)
    seed = first.choices[0].seed
    assert seed < 2**53  # exact in JavaScript
    again = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=6, seed=seed)
    assert again.choices[0].text == first.choices[0].text


async def test_a_negative_seed_counts_from_the_end(client: openai.AsyncOpenAI, fake: TellingVerifier) -> None:
    await client.completions.create(model="fake", prompt=PROMPT, max_tokens=1, seed=-2, n=2)
    assert sorted(request.sampling.seed for request in fake.requests) == [2**64 - 2, 2**64 - 1]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ],
)
async def test_forms_of_prompts(client: openai.AsyncOpenAI, prompt: Any, expected: list[list[int]]) -> None:
    done = await client.completions.create(model="fake", prompt=prompt, max_tokens=4, seed=2)
    assert [choice.text for choice in done.choices] == [text_of(expected_ids(2, 4, each)) for each in expected]


async def test_a_stream_tells_the_same(client: openai.AsyncOpenAI) -> None:
    texts, reasons, usages = {0: "", 1: ""}, {}, []
    stats: list[Any] = []
    stream = await client.completions.create(
        model="fake", prompt=PROMPT, max_tokens=9, seed=7, n=2, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        told: Any = chunk
        stats += [told.speculation] if getattr(told, "speculation", None) else []
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert texts == {0: text_of(expected_ids(7, 9)), 1: text_of(expected_ids(8, 9))}
    assert reasons == {0: "length", 1: "length"}
    assert usages[-1] is not None and usages[-1].completion_tokens == 18 and not any(usages[:-1])
    assert len(stats) == 1 and stats[0]["steps"] == 10


async def test_sources_are_told_where_asked_for(client: openai.AsyncOpenAI) -> None:
    async def sources(**extra: Any) -> list[Any]:
        stream = await client.completions.create(
            model="fake", prompt=PROMPT, max_tokens=4, seed=7, stream=True, extra_body=extra
        )
        return [chunk.to_dict().get("draftwire") async for chunk in stream]

    assert not any(await sources())
    told = [each for each in await sources(speculation={"report_sources": True}) if each]
    assert [each["sources"] for each in told] == [["good", None]] * 2
    assert "".join("".join(each["token_texts"]) for each in told) == text_of(expected_ids(7, 4))


async def test_log_probabilities(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=3, seed=7, logprobs=2)
    told, ids = done.choices[0].logprobs, expected_ids(7, 3)
    assert told is not None
    assert told.tokens == [chr(token_id) for token_id in ids]
    assert told.token_logprobs == [-0.5] * 3
    assert told.top_logprobs == [{chr(token_id): -0.5, chr(token_id + 1): -1.5} for token_id in ids]
    assert told.text_offset == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_begins_with_the_prompt(client: openai.AsyncOpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "fake", "prompt": PROMPT, "max_tokens": 3, "seed": 7, "echo": True, "logprobs": 1}
    if stream:
        chunks = [chunk async for chunk in await client.completions.create(stream=True, **asked)]
    else:
        chunks = [await client.completions.create(**asked)]
    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + text_of(expected_ids(7, 3))
    assert [token for each in told for token in each.tokens or []] == [*PROMPT, *map(chr, expected_ids(7, 3))]
    assert [value for each in told for value in each.token_logprobs or []] == [None, *[-0.5] * 7]
    assert [offset for each in told for offset in each.text_offset or []] == list(range(8))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone(client: openai.AsyncOpenAI, stream: bool) -> None:
    """Evaluation harnesses score texts this way."""
    asked: dict[str, Any] = {"model": "fake", "prompt": [PROMPT, "ab"], "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        usage = {"include_usage": True}
        chunks = [c async for c in await client.completions.create(stream=True, stream_options=usage, **asked)]
    else:
        chunks = [await client.completions.create(**asked)]
    choices = sorted((choice for chunk in chunks for choice in chunk.choices), key=lambda choice: choice.index)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in choices] == [
        (0, PROMPT, "length"),
        (1, "ab", "length"),
    ]
    told = choices[0].logprobs
    assert told is not None
    assert (told.tokens, told.token_logprobs) == ([*PROMPT], [None, *[-0.5] * (len(PROMPT) - 1)])
    assert told.text_offset == list(range(len(PROMPT)))
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert [(each.prompt_tokens, each.completion_tokens) for each in usages] == [(len(PROMPT) + 2, 0)]


async def test_the_prompts_log_probabilities(http: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 2}
    told = (await http.post("/v1/completions", json=body)).json()["choices"][0]["prompt_logprobs"]
    assert told[0] is None and len(told) == len(PROMPT_IDS)
    second = PROMPT_IDS[1]
    assert told[1] == {
        str(second): {"logprob": -0.5, "rank": 1, "decoded_token": chr(second)},
        str(second + 1): {"logprob": -1.5, "rank": 2, "decoded_token": chr(second + 1)},
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_many_log_probabilities_are_written_beside_the_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Those of a prompt of 32,768 tokens with 64 alternatives each take ten seconds."""
    threads: list[int] = []
    write = completion_response.prompt_logprobs

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return write(*given)

    monkeypatch.setattr(completion_response, "prompt_logprobs", noted)
    for prompt in ([5] * 20, [5] * 400):
        body = {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 20, "stream": stream}
        assert (await http.post("/v1/completions", json=body)).text.count('"rank":1,') == len(prompt) - 1
    few, many = threads
    assert few == threading.get_ident() != many


async def test_a_prompts_log_probabilities_are_read_beside_the_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    read = reading.read_prompt

    def noted(message: Any) -> Any:
        threads.append(threading.get_ident())
        return read(message)

    monkeypatch.setattr(reading, "read_prompt", noted)
    told = {"prompt_logprobs": 1}
    for options in ({"echo": True}, told, told | {"echo": True, "max_tokens": 0}):
        assert (await http.post("/v1/completions", json={"prompt": PROMPT} | options)).status_code == 200
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False, False], "once each, also for the result"


async def test_every_option_is_passed_on(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    body = {
        "prompt": PROMPT, "max_tokens": 3, "temperature": 0.5, "top_p": 0.75, "top_k": 40, "min_p": 0.25,
        "typical_p": 0.5, "repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "logit_bias": {"7": -100}, "allowed_token_ids": [1, 2], "banned_token_ids": [3], "bad_words": ["bad"],
        "min_tokens": 2, "ignore_eos": True, "stop": "end", "stop_token_ids": [5],
        "include_stop_str_in_output": True, "max_time": 2, "user": "somebody",
        "prediction": {"type": "content", "content": [{"type": "text", "text": "to "}, {"type": "text", "text": "be"}]},
        "speculation": {"drafters": ["a", "b"], "max_draft_tokens": 4, "acceptance": "typical", "labels": {"x": "y"},
                        "planning": "always",
                        "posterior_threshold": 0.5, "posterior_alpha": 0.25, "dynamic_temperature": True},
    }  # fmt: skip
    response = await http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"] == "mine"
    assert response.json()["id"] == "cmpl-mine"
    assert response.headers["x-draftwire-fingerprint"] == response.json()["system_fingerprint"]
    assert response.headers["x-draftwire-cached-tokens"] == "0"
    sent = fake.requests[0]
    sampling, speculation = sent.sampling, sent.speculation
    assert sent.request_id == "mine-0"
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.75, 40, 0.25)
    assert (sampling.typical_p, sampling.repetition_penalty) == (0.5, 1.25)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert dict(sampling.logit_bias) == {7: -100}
    assert (list(sampling.allowed_token_ids), list(sampling.banned_token_ids)) == ([1, 2], [3])
    assert list(sampling.bad_words) == ["bad"]
    assert (sent.min_tokens, sent.ignore_eos, list(sent.stop)) == (2, True, ["end"])
    assert (list(sent.stop_token_ids), sent.include_stop) == ([5], True)
    assert 1 < sent.max_time.ToTimedelta().total_seconds() <= 2
    assert speculation.prediction.text == "to be"
    assert list(speculation.drafter_names) == ["a", "b"] and dict(speculation.labels) == {"x": "y"}
    assert (speculation.max_draft_tokens, speculation.acceptance, speculation.planning) == (4, 3, 2)
    assert (speculation.posterior_threshold, speculation.posterior_alpha) == (0.5, 0.25)
    assert speculation.dynamic_temperature


async def test_a_top_p_of_0_keeps_the_likeliest_token(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    """OpenAI takes it, and no verifier does."""
    for top_p in (0, 0.0):
        response = await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3, "top_p": top_p})
        assert response.status_code == 200, response.text
    assert all(0 < sent.sampling.top_p < 1e-6 for sent in fake.requests)


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            "json_schema",
            json.dumps({"type": "null"}),
        ),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", json.dumps({"type": "null"})),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"guided_json": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "start: /a/"}, "lark", "start: /a/"),
        ({"guided_grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
    ],
)
async def test_forms_are_passed_on(
    http: httpx.AsyncClient, fake: TellingVerifier, body: dict[str, Any], field: str, value: Any
) -> None:
    assert (await http.post("/v1/completions", json={"prompt": PROMPT, **body})).status_code == 200
    form = fake.requests[0].structured_output
    assert form.WhichOneof("form") == field
    assert getattr(form, field) == value


@pytest.mark.parametrize("body", [{"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}])
async def test_choices_are_passed_on(http: httpx.AsyncClient, fake: TellingVerifier, body: dict[str, Any]) -> None:
    await http.post("/v1/completions", json={"prompt": PROMPT, **body})
    assert list(fake.requests[0].structured_output.choice.texts) == ["a", "b"]


async def test_text_is_no_form(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    await http.post("/v1/completions", json={"prompt": PROMPT, "response_format": {"type": "text"}})
    assert not fake.requests[0].HasField("structured_output")
