"""Every request option with every kind of drafter: the same tokens, text and log-probabilities.

Each request is sent without drafts, and with one of: a draft model, n-gram lookup and a draft model in one tree, a
drafter that is swapped for a worse one. Few requests combine the options so that each value of one meets each value of
each other one; each option alone with each way of drafting is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from draftwire import AsyncClient, Client, Speculation
from draftwire_tools.check.comparison import Run, generate
from draftwire_tools.check.output import Output
from tests.harness.compared import Compared, speculating
from tests.harness.pairwise import all_pairs, pairs_of, pairwise
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

PROMPT = "def total(numbers):\n    result = 0\n    for number in numbers:\n"
TOKENS, SEED = 40, 11
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


FORMS = ("json_schema", "regex", "choice", "json_object", "lark", "ebnf", "no jump-ahead")
OPTIONS: dict[str, tuple[str, ...]] = {
    "candidates": ("", "top_k", "top_p", "min_p", "typical_p"),
    "bias": ("", "logit_bias", "allowed_token_ids", "banned_token_ids", "bad_words"),
    "end": ("", "stop", "stop kept", "stop_token_ids", "min_tokens"),
    "penalty": ("", "repetition_penalty", "presence and frequency"),
    "report": ("", "logprobs", "prompt_logprobs"),
    "drafter": ("draft model", "n-gram and draft model", "swap"),
    "sampling": tuple(SAMPLINGS),
    "cache": ("", "no prefix cache"),
}
"""Features that can be asked for together; an empty one is no feature."""
COMBINED = [tuple(each.values()) for each in pairwise(OPTIONS)]
EACH_FORM = [
    (form, OPTIONS["sampling"][place // 3 % 2], OPTIONS["drafter"][place % 3]) for place, form in enumerate(FORMS)
]


def options(sampling: str, *features: str) -> dict[str, Any]:
    asked = {"ignore_eos": True, "logprobs": 1} | SAMPLINGS[sampling]
    for feature in filter(None, features):
        asked |= FEATURES[feature]
    return asked


def name(sampling: str, *features: str) -> str:
    return ", ".join(filter(None, (sampling, *features)))


Drafted = Callable[..., None]
"""The type of `drafted(how, sampling, *features)`, which compares a result with drafts with the plain one."""


@pytest.fixture(scope="module")
def compared(verifier: ServiceProcess) -> Compared:
    combined = [(sampling, *features, cache) for *features, _, sampling, cache in COMBINED]
    alone = [(sampling, feature) for sampling in SAMPLINGS for feature in FEATURES]
    asked = {name(*each): options(*each) for each in (*combined, *alone)}
    return Compared(verifier.address, [PROMPT], asked, TOKENS, SEED)


@pytest.fixture
def drafted(client: Client, compared: Compared, good_drafter: str, bad_drafter: str) -> Drafted:
    def compare(how: str, sampling: str, *features: str) -> None:
        client.drafters.attach(good_drafter, "good")
        way = speculating()
        if how == "n-gram and draft model":
            client.drafters.attach("local:ngram")
            way = speculating(Speculation(drafters=["local:ngram", "good"]))
        elif how == "swap":
            client.drafters.attach(bad_drafter, "bad")
            way = swapped
        compared(way, name(sampling, *features))

    return compare


def swapped(client: AsyncClient) -> Run:
    """The good drafter gives way to the bad one after the first chunk."""
    drafters = ["good", "bad"]

    async def swap(tokens: int) -> None:
        if drafters:
            await client.drafters.swap(drafters.pop(0), drafters.pop(0))

    return partial(generate, client, speculation=Speculation(drafter="good"), each=swap)


@pytest.mark.parametrize(tuple(OPTIONS), COMBINED)
def test_combined(
    drafted: Drafted,
    candidates: str,
    bias: str,
    end: str,
    penalty: str,
    report: str,
    drafter: str,
    sampling: str,
    cache: str,
) -> None:
    drafted(drafter, sampling, candidates, bias, end, penalty, report, cache)


def test_each_pair_of_options_is_combined() -> None:
    combined = [dict(zip(OPTIONS, values, strict=True)) for values in COMBINED]
    assert {pair for each in combined for pair in pairs_of(each)} == set(all_pairs(OPTIONS))
    assert len(combined) < 32
    asked = {feature for name in OPTIONS.keys() - {"sampling", "drafter"} for feature in OPTIONS[name]}
    assert asked | set(FORMS) | {"all at once"} == {"", *FEATURES}


@pytest.mark.parametrize(("form", "sampling", "how"), EACH_FORM)
def test_a_form(drafted: Drafted, form: str, sampling: str, how: str) -> None:
    drafted(how, sampling, form)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
class TestMatrix:
    @pytest.mark.parametrize("how", OPTIONS["drafter"])
    @pytest.mark.parametrize("feature", FEATURES)
    def test_a_feature(self, drafted: Drafted, feature: str, sampling: str, how: str) -> None:
        drafted(how, sampling, feature)

    def test_each_feature_makes_a_difference(self, compared: Compared, sampling: str) -> None:
        """Without differences, the matrix would show little."""
        found = {feature: compared.plain(name(sampling, feature)) for feature in FEATURES}
        without = found["no prefix cache"]
        unfelt = {"no prefix cache", *(("top_k", "top_p", "min_p", "typical_p") if sampling == "greedy" else ())}
        same = {feature for feature in FEATURES if found[feature] == without}
        assert same <= unfelt | {"top_k", "top_p", "min_p", "typical_p"}, "filters may keep what comes anyway"


@pytest.mark.parametrize(
    "feature", ["typical_p", "presence and frequency", "logit_bias", "logprobs", "prompt_logprobs"]
)
def test_speculation_goes_on_beside(client: Client, feature: str) -> None:
    """Drafters do not know most of these options; their drafts are accepted all the same."""
    client.drafters.attach("local:ngram")
    asked = options("greedy", feature) | {"max_tokens": 64, "seed": SEED}
    sometimes(lambda: client.generate(PROMPT * 4, **asked).speculation.accepted_tokens, "drafts are accepted")


def test_choices_are_what_each_seed_gives(client: Client, good_drafter: str) -> None:
    client.drafters.attach(good_drafter, "good")
    asked = options("sampled", "logprobs") | {"max_tokens": TOKENS}
    result = client.generate(PROMPT, n=3, seed=SEED, **asked)
    alone = [client.generate(PROMPT, seed=SEED + number, **asked) for number in range(3)]
    choices = [replace(choice, further=[]) for choice in result.choices]
    assert list(map(Output.of, choices)) == list(map(Output.of, alone))
