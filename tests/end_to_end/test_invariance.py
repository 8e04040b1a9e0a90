"""The first law: tokens are a function of target, prompt, sampling parameters and seed only.

This is a part of the matrix; benchmarks/laws/invariance.py runs all of it.
"""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from draftwire import Client, Generation, Speculation
from tests.harness.waiting import sometimes

if TYPE_CHECKING:
    from tests.harness.services import RunningService

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
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
LONG = 160
ALONE = 4
BATCH = 16

each_sampling = pytest.mark.parametrize("sampling", SAMPLINGS)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    lines = (ROOT / "models" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:BATCH]
    return [json.loads(line)["text"] for line in lines]


def options(sampling: str, tokens: int = TOKENS) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, **SAMPLINGS[sampling]}


@pytest.fixture(scope="module")
def expected(verifier: "RunningService", prompts: list[str]) -> dict[str, list[list[int]]]:
    """The output of each prompt alone, without drafter and prefix cache; the seed is the prompt's number."""
    with Client(verifier.address, timeout=120) as client:
        assert client.drafters.list() == []
        return {
            sampling: [
                client.generate(prompt, seed=seed, prefix_cache=False, **options(sampling)).token_ids
                for seed, prompt in enumerate(prompts)
            ]
            for sampling in SAMPLINGS
        }


def assert_same(results: list[Generation], expected: list[list[int]]) -> None:
    assert [result.token_ids for result in results] == expected[: len(results)]
    assert not any(result.resumes for result in results)


@each_sampling
def test_seeds_and_samplings_make_a_difference(expected: dict[str, list[list[int]]], sampling: str) -> None:
    """Without differences, the other tests in this file would show little."""
    assert all(len(tokens) == TOKENS for tokens in expected[sampling])
    assert len({tuple(tokens) for tokens in expected[sampling]}) > BATCH // 2
    assert all(expected[sampling] != other for name, other in expected.items() if name != sampling)


@each_sampling
def test_in_a_batch(client: Client, prompts: list[str], expected: dict[str, list[list[int]]], sampling: str) -> None:
    assert_same(client.generate_batch(prompts, seed=list(range(BATCH)), **options(sampling)), expected[sampling])


@pytest.mark.parametrize("drafter", ["good_drafter", "bad_drafter", "untrained_drafter"])
class TestWithADrafter:
    @pytest.fixture(autouse=True)
    def attached(self, client: Client, request: pytest.FixtureRequest, drafter: str) -> None:
        client.drafters.attach(request.getfixturevalue(drafter), drafter)

    @each_sampling
    def test_alone(
        self, client: Client, prompts: list[str], expected: dict[str, list[list[int]]], sampling: str, drafter: str
    ) -> None:
        results = [
            client.generate(prompt, seed=seed, **options(sampling)) for seed, prompt in enumerate(prompts[:ALONE])
        ]
        assert_same(results, expected[sampling])

    @each_sampling
    def test_in_a_batch(
        self, client: Client, prompts: list[str], expected: dict[str, list[list[int]]], sampling: str, drafter: str
    ) -> None:
        assert_same(client.generate_batch(prompts, seed=list(range(BATCH)), **options(sampling)), expected[sampling])


@pytest.mark.parametrize("address", ["local:ngram", "local:suffix?shared=true"])
@each_sampling
def test_with_a_drafter_in_the_verifier(
    client: Client,
    prompts: list[str],
    expected: dict[str, list[list[int]]],
    sampling: str,
    address: str,
    good_drafter: str,
) -> None:
    client.drafters.attach(address)
    client.drafters.attach(good_drafter, "good")

    def used() -> bool:
        names: set[str] = set()
        for speculation in (Speculation(drafter=address), Speculation(drafters=[address, "good"])):
            results = client.generate_batch(
                prompts, seed=list(range(BATCH)), speculation=speculation, **options(sampling)
            )
            assert_same(results, expected[sampling])
            names |= {share.name for result in results for share in result.speculation.drafters}
        return address in names

    sometimes(used, "until it has used up its credit, if it does not pay before so fast a target")


@each_sampling
def test_with_a_prediction(
    client: Client, prompts: list[str], expected: dict[str, list[list[int]]], sampling: str
) -> None:
    for seed, prompt in enumerate(prompts[:ALONE]):
        tokens = expected[sampling][seed]
        for prediction, steps in ((tokens, TOKENS / 2), ([*tokens[:9], 5, *tokens[10:]], TOKENS), ("what?", TOKENS)):
            result = client.generate(
                prompt, seed=seed, speculation=Speculation(prediction=prediction), **options(sampling)
            )
            assert_same([result], [tokens])
            assert result.speculation.steps <= steps


def test_with_all_drafters_at_once(
    client: Client,
    prompts: list[str],
    expected: dict[str, list[list[int]]],
    good_drafter: str,
    bad_drafter: str,
    untrained_drafter: str,
) -> None:
    for address in (good_drafter, bad_drafter, untrained_drafter):
        client.drafters.attach(address)
    for sampling in SAMPLINGS:
        assert_same(client.generate_batch(prompts, seed=list(range(BATCH)), **options(sampling)), expected[sampling])


@pytest.mark.parametrize("other", ["bad_drafter", "local:ngram"])
@each_sampling
def test_a_swap_after_every_five_tokens(
    client: Client, request: pytest.FixtureRequest, prompts: list[str], sampling: str, good_drafter: str, other: str
) -> None:
    plain = client.generate(prompts[0], seed=0, **options(sampling, LONG)).token_ids
    addresses = [good_drafter, other if other.startswith("local:") else request.getfixturevalue(other)]
    client.drafters.attach(addresses[0])

    def swapped() -> int:
        """Returns the number of swaps while the request ran."""
        tokens: list[int] = []
        swaps = moved = 0
        with client.stream(prompts[0], seed=0, **options(sampling, LONG)) as stream:
            for chunk in stream:
                tokens += chunk.token_ids
                if len(tokens) >= 5 * (swaps + 1):
                    moved += client.drafters.swap(*addresses).moved_sequences
                    swaps += 1
                    addresses.reverse()
        assert tokens == plain
        return moved

    sometimes(swapped, "the request moves")


def test_a_drafter_that_is_killed(
    client: Client, prompts: list[str], start_drafter: Callable[..., "RunningService"]
) -> None:
    plain = [client.generate(prompts[0], seed=5, **options(sampling, LONG)).token_ids for sampling in SAMPLINGS]
    drafter = start_drafter()
    client.drafters.attach(drafter.address)
    streams = [client.stream(prompts[0], seed=5, **options(sampling, LONG)) for sampling in SAMPLINGS]
    tokens: list[list[int]] = [[] for _ in streams]
    for chunk in streams[0]:
        tokens[0] += chunk.token_ids
        if any(chunk.sources):
            break
    drafter.process.send_signal(signal.SIGKILL)
    for index, stream in enumerate(streams):
        for chunk in stream:
            tokens[index] += chunk.token_ids
    assert tokens == plain
    assert not any(stream.result.resumes for stream in streams)
    drafter.process.wait()
