"""Every request option with every kind of drafter: the same tokens, text and log-probabilities.

Each feature is requested without drafts, and with one of: a draft model, n-gram lookup and a draft model in one tree, a
drafter that is swapped for a worse one; greedy or sampled. All combinations are slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from draftwire import Client, Generation, Speculation
from tests.harness.waiting import PATIENCE, sometimes

if TYPE_CHECKING:
    from tests.harness.services import RunningService

pytestmark = pytest.mark.processes

PROMPT = "def total(numbers):\n    result = 0\n    for number in numbers:\n"
TOKENS = 40
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FEATURES: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    "logit_bias": {"logit_bias": {199: -8.0, 403: -100.0, 12: 1.5}},
    "allowed_token_ids": {"allowed_token_ids": range(0, 4096, 2)},
    "banned_token_ids": {"banned_token_ids": range(1, 4096, 5)},
    "bad_words": {"bad_words": ["\n", ":", "(", "def", "ingle"]},
    "min_tokens": {"min_tokens": 9, "stop": "e"},
    "stop": {"stop": ["single", "e", "a"]},
    "stop kept": {"stop": ["single", "e", "a"], "include_stop": True},
    "stop_token_ids": {"stop_token_ids": range(201, 501, 5)},
    "logprobs": {"logprobs": 5},
    "prompt_logprobs": {"prompt_logprobs": 3, "echo": True},
    "json_schema": {"json_schema": PERSON, "ignore_eos": False},
    "regex": {"regex": r"    (result|total) [+*]= number( \* [0-9]{1,3})?\n", "ignore_eos": False},
    "choice": {"choice": ["    result += number", "    result -= number", "    pass"], "ignore_eos": False},
    "json_object": {"json_object": True, "ignore_eos": False},
    "lark": {"grammar": 'start: "    " NAME " = " /[0-9]{1,6}/ "\\n"\nNAME: "result" | "total"\n', "ignore_eos": False},
    "ebnf": {"ebnf": 'root ::= "    return " ("result" | "total" | [a-z]+) "\\n"', "ignore_eos": False},
    "no jump-ahead": {"json_schema": PERSON, "jump_ahead": False, "ignore_eos": False},
    "no prefix cache": {"prefix_cache": False},
    "all at once": {
        "top_p": 0.95,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "logit_bias": {199: 1.0},
        "bad_words": ["while"],
        "min_tokens": 8,
        "logprobs": 2,
        "echo": True,
        "prompt_logprobs": 1,
        "stop": "e",
    },
}


def told(result: Generation) -> dict[str, Any]:
    """Returns the parts of a result that must not depend on drafters."""
    return {
        "token_ids": result.token_ids,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "stop_token_id": result.stop_token_id,
        "token_texts": result.token_texts,
        "text_offsets": result.text_offsets,
        "logprobs": result.logprobs,
        "prompt": result.prompt,
    }


def options(feature: str, sampling: str) -> dict[str, Any]:
    usual = {"max_tokens": TOKENS, "seed": 11, "ignore_eos": True, "logprobs": 1}
    return usual | SAMPLINGS[sampling] | FEATURES[feature]


Plainly = Callable[[str, str], dict[str, Any]]
"""The type of `plainly(feature, sampling)`, a result without speculation."""


@pytest.fixture(scope="module")
def plainly(verifier: RunningService) -> Plainly:
    """Returns a function that gives a feature's result without speculation."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def ask(feature: str, sampling: str) -> dict[str, Any]:
        if (feature, sampling) not in known:
            with Client(verifier.address, timeout=PATIENCE) as client:
                off = Speculation(enabled=False)
                known[feature, sampling] = told(client.generate(PROMPT, speculation=off, **options(feature, sampling)))
        return known[feature, sampling]

    return ask


Addresses = tuple[str, str]
"""The addresses of a good drafter and of a bad one."""


@pytest.fixture
def addresses(good_drafter: str, bad_drafter: str) -> Addresses:
    return good_drafter, bad_drafter


def with_a_draft_model(client: Client, addresses: Addresses, asked: dict[str, Any]) -> Generation:
    client.drafters.attach(addresses[0], "good")
    return client.generate(PROMPT, **asked)


def with_ngram_and_a_draft_model(client: Client, addresses: Addresses, asked: dict[str, Any]) -> Generation:
    client.drafters.attach(addresses[0], "good")
    client.drafters.attach("local:ngram")
    return client.generate(PROMPT, speculation=Speculation(drafters=["local:ngram", "good"]), **asked)


def with_a_swap_in_the_middle(client: Client, addresses: Addresses, asked: dict[str, Any]) -> Generation:
    client.drafters.attach(addresses[0], "good")
    client.drafters.attach(addresses[1], "bad")
    with client.stream(PROMPT, speculation=Speculation(drafter="good"), **asked) as stream:
        for place, _ in enumerate(stream):
            if place == 0:
                client.drafters.swap("good", "bad")
    return stream.result


DRAFTED = (with_a_draft_model, with_ngram_and_a_draft_model, with_a_swap_in_the_middle)
EACH_ONCE = [
    (feature, list(SAMPLINGS)[place // len(DRAFTED) % len(SAMPLINGS)], DRAFTED[place % len(DRAFTED)])
    for place, feature in enumerate(FEATURES)
]
"""Each feature once, and each sampling with each kind of drafting several times."""


@pytest.mark.parametrize(("feature", "sampling", "drafted"), EACH_ONCE)
def test_each_feature(
    client: Client,
    addresses: Addresses,
    plainly: Plainly,
    feature: str,
    sampling: str,
    drafted: Callable[..., Generation],
) -> None:
    assert told(drafted(client, addresses, options(feature, sampling))) == plainly(feature, sampling)


def test_each_sampling_meets_each_kind_of_drafting() -> None:
    pairs = {(sampling, drafted) for _, sampling, drafted in EACH_ONCE}
    assert len(pairs) == len(SAMPLINGS) * len(DRAFTED)


@pytest.mark.slow
@pytest.mark.parametrize("drafted", DRAFTED)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("feature", FEATURES)
class TestMatrix:
    def test_it_is_the_same(
        self,
        client: Client,
        addresses: Addresses,
        plainly: Plainly,
        feature: str,
        sampling: str,
        drafted: Callable[..., Generation],
    ) -> None:
        assert told(drafted(client, addresses, options(feature, sampling))) == plainly(feature, sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_each_feature_makes_a_difference(plainly: Plainly, sampling: str) -> None:
    """Without differences, the matrix would show little."""
    without = plainly("no prefix cache", sampling)
    unfelt = {"no prefix cache", *(("top_k", "top_p", "min_p", "typical_p") if sampling == "greedy" else ())}
    same = {feature for feature in FEATURES if plainly(feature, sampling) == without}
    assert same <= unfelt | {"top_k", "top_p", "min_p", "typical_p"}, "filters may keep what comes anyway"


@pytest.mark.parametrize(
    "feature", ["typical_p", "presence and frequency", "logit_bias", "logprobs", "prompt_logprobs"]
)
def test_speculation_goes_on_beside(client: Client, feature: str) -> None:
    """Drafters do not know most of these options; their drafts are accepted all the same."""
    client.drafters.attach("local:ngram")
    asked = options(feature, "greedy") | {"max_tokens": 64}
    sometimes(lambda: client.generate(PROMPT * 4, **asked).speculation.accepted_tokens, "drafts are accepted")


def test_choices_are_what_each_seed_gives(client: Client, good_drafter: str) -> None:
    client.drafters.attach(good_drafter, "good")
    asked = options("logprobs", "sampled")
    result = client.generate(PROMPT, n=3, **asked)
    alone = [client.generate(PROMPT, **asked | {"seed": 11 + number}) for number in range(3)]
    assert [told(choice) for choice in result.choices] == [told(each) for each in alone]
    assert told(replace(result)) == told(alone[0])
