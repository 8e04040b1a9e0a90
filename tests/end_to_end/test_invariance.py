"""The first law: tokens are a function of target, prompt, sampling parameters and seed only.

Each way of drafting meets a greedy request or a sampled one; the slow tests cross them all with more kinds of sampling
and larger batches, and benchmarks/laws/invariance.py runs the whole matrix.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from draftwire import Client, Generation, Speculation
from tests.harness.checkout import ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, sometimes

pytestmark = pytest.mark.processes

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T 0.8": {"temperature": 0.8},
    "T 1.2, top-p 0.95": {"temperature": 1.2, "top_p": 0.95},
    "changed logits": {
        "temperature": 0.8,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "logit_bias": {199: -1.0},
        "bad_words": ["return", "self"],
    },
}
TOKENS = 24
LONG = 80
ALONE = 2
BATCH = 8
LARGE = 16
"""Prompts of a batch in the slow tests."""
LOCAL = ("local:ngram", "local:suffix?shared=true")
OTHERS = ("bad_drafter", "local:ngram")
"""What takes the place of the good drafter, and gives it back."""

Expected = Callable[..., list[list[int]]]
"""The type of `expected(sampling, count)`, the outputs of the first prompts."""


def prompts(count: int) -> list[str]:
    lines = (ROOT / "models" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line)["text"] for line in lines]


def options(sampling: str, tokens: int = TOKENS) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, **SAMPLINGS[sampling]}


@pytest.fixture(scope="module")
def expected(verifier: ServiceProcess) -> Expected:
    """The output of each prompt alone, without drafter and prefix cache; the seed is the prompt's number."""
    known: dict[tuple[str, int], list[int]] = {}

    def ask(sampling: str, count: int = BATCH) -> list[list[int]]:
        with Client(verifier.address, timeout=PATIENCE) as client:
            for seed, prompt in enumerate(prompts(count)):
                if (sampling, seed) not in known:
                    known[sampling, seed] = client.generate(
                        prompt,
                        seed=seed,
                        prefix_cache=False,
                        speculation=Speculation(enabled=False),
                        **options(sampling),
                    ).token_ids
        return [known[sampling, seed] for seed in range(count)]

    return ask


@pytest.fixture
def address_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Returns a function that gives the address of a drafter; a name of a fixture stands for its service."""
    return lambda drafter: drafter if drafter.startswith("local:") else request.getfixturevalue(drafter)


def batch(client: Client, sampling: str, count: int, speculation: Speculation | None = None) -> list[Generation]:
    return client.generate_batch(prompts(count), seed=list(range(count)), speculation=speculation, **options(sampling))


def assert_same(results: Sequence[Generation], expected: Sequence[list[int]]) -> None:
    assert [result.token_ids for result in results] == list(expected)
    assert not any(result.resumes for result in results)


def check_samplings_differ(expected: Expected, samplings: Sequence[str], count: int) -> None:
    found = [expected(sampling, count) for sampling in samplings]
    for tokens in found:
        assert all(len(each) == TOKENS for each in tokens)
        assert len(set(map(tuple, tokens))) > count // 2
    assert all(one != other for one, other in combinations(found, 2))


def check_a_drafter(client: Client, expected: Expected, sampling: str, address: str, count: int) -> None:
    """One request at a time, and all at once."""
    client.drafters.attach(address, "one")
    alone = [client.generate(prompt, seed=seed, **options(sampling)) for seed, prompt in enumerate(prompts(ALONE))]
    assert_same(alone, expected(sampling, ALONE))
    assert_same(batch(client, sampling, count), expected(sampling, count))


def check_a_drafter_in_the_verifier(
    client: Client, expected: Expected, sampling: str, local: str, good_drafter: str, count: int
) -> None:
    """Alone, and in one tree with a draft model."""
    client.drafters.attach(local)
    client.drafters.attach(good_drafter, "good")

    def used() -> bool:
        names: set[str] = set()
        for speculation in (Speculation(drafter=local), Speculation(drafters=[local, "good"])):
            results = batch(client, sampling, count, speculation)
            assert_same(results, expected(sampling, count))
            names |= {share.name for result in results for share in result.speculation.drafters}
        return local in names

    sometimes(used, "until it has used up its credit, if it does not pay before so fast a target")


def check_predictions(client: Client, expected: Expected, sampling: str, count: int) -> None:
    """One that is right, one with a wrong token, and one that is wrong."""
    for seed, prompt in enumerate(prompts(count)):
        tokens = expected(sampling, count)[seed]
        for prediction, steps in ((tokens, TOKENS / 2), ([*tokens[:9], 5, *tokens[10:]], TOKENS), ("what?", TOKENS)):
            speculation = Speculation(prediction=prediction, planning="always")  # whatever a row costs here
            result = client.generate(prompt, seed=seed, speculation=speculation, **options(sampling))
            assert_same([result], [tokens])
            assert result.speculation.steps <= steps


def check_swaps(client: Client, sampling: str, one: str, other: str, tokens: int) -> None:
    """Swaps after every five tokens, there and back."""
    (prompt,) = prompts(1)
    plain = client.generate(prompt, seed=0, **options(sampling, tokens)).token_ids
    addresses = [one, other]
    client.drafters.attach(addresses[0])

    def swapped() -> int:
        """Returns the number of swaps while the request ran."""
        found: list[int] = []
        swaps = moved = 0
        with client.stream(prompt, seed=0, **options(sampling, tokens)) as stream:
            for chunk in stream:
                found += chunk.token_ids
                if len(found) >= 5 * (swaps + 1):
                    moved += client.drafters.swap(*addresses).moved_sequences
                    swaps += 1
                    addresses.reverse()
        assert found == plain
        return moved

    sometimes(swapped, "the request moves")


def check_a_killed_drafter(client: Client, samplings: Sequence[str], drafter: ServiceProcess, tokens: int) -> None:
    """A request of each sampling runs when it is killed."""
    (prompt,) = prompts(1)
    plain = [client.generate(prompt, seed=5, **options(sampling, tokens)).token_ids for sampling in samplings]
    client.drafters.attach(drafter.address)
    streams = [client.stream(prompt, seed=5, **options(sampling, tokens)) for sampling in samplings]
    found: list[list[int]] = [[] for _ in streams]
    for chunk in streams[0]:
        found[0] += chunk.token_ids
        if any(chunk.sources):
            break
    drafter.process.send_signal(signal.SIGKILL)
    for index, stream in enumerate(streams):
        for chunk in stream:
            found[index] += chunk.token_ids
    assert found == plain
    assert not any(stream.result.resumes for stream in streams)
    drafter.process.wait()


def test_seeds_and_samplings_make_a_difference(expected: Expected) -> None:
    """Without differences, the other tests in this file would show little."""
    check_samplings_differ(expected, ("greedy", "T 0.8"), BATCH)


@pytest.mark.parametrize("sampling", ["greedy", "T 0.8"])
def test_in_a_batch(client: Client, expected: Expected, sampling: str) -> None:
    assert_same(batch(client, sampling, BATCH), expected(sampling))


@pytest.mark.parametrize(
    ("drafter", "sampling"), [("good_drafter", "greedy"), ("good_drafter", "T 0.8"), ("bad_drafter", "T 0.8")]
)
def test_with_a_drafter(
    client: Client, expected: Expected, address_of: Callable[[str], str], drafter: str, sampling: str
) -> None:
    check_a_drafter(client, expected, sampling, address_of(drafter), BATCH)


@pytest.mark.parametrize(("local", "sampling"), [(LOCAL[0], "T 0.8"), (LOCAL[1], "greedy")])
def test_with_a_drafter_in_the_verifier(
    client: Client, expected: Expected, good_drafter: str, local: str, sampling: str
) -> None:
    check_a_drafter_in_the_verifier(client, expected, sampling, local, good_drafter, 4)


@pytest.mark.parametrize("sampling", ["greedy", "T 0.8"])
def test_with_a_prediction(client: Client, expected: Expected, sampling: str) -> None:
    check_predictions(client, expected, sampling, 1)


def test_with_all_drafters_at_once(
    client: Client, expected: Expected, good_drafter: str, bad_drafter: str, untrained_drafter: str
) -> None:
    for address in (good_drafter, bad_drafter, untrained_drafter):
        client.drafters.attach(address)
    for sampling in ("T 1.2, top-p 0.95", "changed logits"):
        assert_same(batch(client, sampling, 4), expected(sampling, 4))


@pytest.mark.parametrize(("other", "sampling"), [(OTHERS[0], "T 0.8"), (OTHERS[1], "greedy")])
def test_a_swap_after_every_five_tokens(
    client: Client, address_of: Callable[[str], str], good_drafter: str, other: str, sampling: str
) -> None:
    check_swaps(client, sampling, good_drafter, address_of(other), LONG)


def test_a_drafter_that_is_killed(client: Client, services: Services) -> None:
    check_a_killed_drafter(client, ("T 0.8", "greedy"), services.drafter(), LONG)


@pytest.mark.slow
class TestEachSampling:
    """More of all."""

    def test_samplings_differ(self, expected: Expected) -> None:
        check_samplings_differ(expected, tuple(SAMPLINGS), LARGE)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_in_a_batch(self, client: Client, expected: Expected, sampling: str) -> None:
        assert_same(batch(client, sampling, LARGE), expected(sampling, LARGE))

    @pytest.mark.parametrize(
        ("sampling", "drafter"), [*product(SAMPLINGS, ("good_drafter", "bad_drafter", "untrained_drafter"))]
    )
    def test_with_a_drafter(
        self, client: Client, expected: Expected, address_of: Callable[[str], str], sampling: str, drafter: str
    ) -> None:
        check_a_drafter(client, expected, sampling, address_of(drafter), LARGE)

    @pytest.mark.parametrize(("sampling", "local"), [*product(SAMPLINGS, LOCAL)])
    def test_with_a_drafter_in_the_verifier(
        self, client: Client, expected: Expected, good_drafter: str, sampling: str, local: str
    ) -> None:
        check_a_drafter_in_the_verifier(client, expected, sampling, local, good_drafter, LARGE)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_with_a_prediction(self, client: Client, expected: Expected, sampling: str) -> None:
        check_predictions(client, expected, sampling, 4)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_with_all_drafters_at_once(
        self,
        client: Client,
        expected: Expected,
        good_drafter: str,
        bad_drafter: str,
        untrained_drafter: str,
        sampling: str,
    ) -> None:
        for address in (good_drafter, bad_drafter, untrained_drafter):
            client.drafters.attach(address)
        assert_same(batch(client, sampling, LARGE), expected(sampling, LARGE))

    @pytest.mark.parametrize(("sampling", "other"), [*product(SAMPLINGS, OTHERS)])
    def test_a_swap_after_every_five_tokens(
        self, client: Client, address_of: Callable[[str], str], good_drafter: str, sampling: str, other: str
    ) -> None:
        check_swaps(client, sampling, good_drafter, address_of(other), 2 * LONG)

    def test_a_drafter_that_is_killed(self, client: Client, services: Services) -> None:
        check_a_killed_drafter(client, tuple(SAMPLINGS), services.drafter(), 2 * LONG)
