"""The first law: tokens are a function of target, prompt, sampling parameters and seed only.

Each way of drafting meets a greedy request or a sampled one; the slow tests cross them all with more kinds of sampling
and larger batches, and benchmarks/laws/invariance.py runs the whole matrix. All compare as `draftwire check` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from benchmarks.harness.held_out import held_out_prompts
from draftwire import AsyncClient, Client, Speculation, SpeculationStats
from draftwire_tools.check.comparison import Around, Run, generate
from draftwire_tools.check.output import Output
from draftwire_tools.check.request import CheckRequest
from tests.harness.compared import Compared, speculating
from tests.harness.kills import KilledDrafters
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "T 0.8": {"temperature": 0.8, "ignore_eos": True},
    "T 1.2, top-p 0.95": {"temperature": 1.2, "top_p": 0.95, "ignore_eos": True},
    "changed logits": {
        "temperature": 0.8,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "logit_bias": {199: -1.0},
        "bad_words": ["return", "self"],
        "ignore_eos": True,
    },
}
TOKENS = 24
LONG = 1200
ALONE = 2
BATCH = 8
LARGE = 16
"""Prompts of a batch in the slow tests."""
LOCAL = ("local:ngram", "local:suffix?shared=true")
OTHERS = ("bad_drafter", "local:ngram")
"""What takes the place of the good drafter, and gives it back."""


@pytest.fixture(scope="module")
def compared(verifier: ServiceProcess) -> Compared:
    return Compared(verifier.address, held_out_prompts(LARGE), SAMPLINGS, TOKENS)


@pytest.fixture(scope="module")
def long(verifier: ServiceProcess) -> Compared:
    return Compared(verifier.address, held_out_prompts(1), SAMPLINGS, LONG)


@pytest.fixture
def address_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Returns a function that gives the address of a drafter; a name of a fixture stands for its service."""
    return lambda drafter: drafter if drafter.startswith("local:") else request.getfixturevalue(drafter)


def check_samplings_differ(compared: Compared, samplings: Sequence[str], count: int) -> None:
    found = [[each.token_ids for each in compared.plain(sampling, count)] for sampling in samplings]
    for tokens in found:
        assert all(len(each) == TOKENS for each in tokens)
        assert len(set(tokens)) > count // 2
    assert all(one != other for one, other in combinations(found, 2))


def check_a_drafter(client: Client, compared: Compared, sampling: str, address: str, count: int) -> None:
    """One request at a time, and all at once."""
    client.drafters.attach(address, "one")
    compared(speculating(), sampling, ALONE)
    compared(speculating(), sampling, count, batch=count)


def check_a_drafter_in_the_verifier(
    client: Client, compared: Compared, sampling: str, local: str, good_drafter: str, count: int
) -> None:
    """Alone, and in one tree with a draft model."""
    client.drafters.attach(local)
    client.drafters.attach(good_drafter, "good")
    alone = Speculation(drafter=local, planning="always")
    both = Speculation(drafters=[local, "good"])

    def used() -> int:
        compared(speculating(both), sampling, count, batch=count)
        return compared(speculating(alone), sampling, count, batch=count).draft_tokens

    sometimes(used, "until it has used up its credit, if it does not pay before so fast a target")


def check_predictions(compared: Compared, sampling: str, count: int) -> None:
    """One that is right, one with a wrong token, and one that is wrong."""
    tokens = [list(each.token_ids) for each in compared.plain(sampling, count)]
    for change, steps in (
        (lambda right: right, TOKENS / 2),
        (lambda right: [*right[:9], 5, *right[10:]], TOKENS),
        (lambda right: "what?", TOKENS),
    ):

        def predicting(client: AsyncClient, change: Callable[[list[int]], Any] = change) -> Run:
            async def run(request: CheckRequest) -> tuple[Output, SpeculationStats]:
                prediction = change(tokens[request.number])
                speculation = Speculation(prediction=prediction, planning="always")  # whatever a row costs here
                return await generate(client, request, speculation=speculation)

            return run

        assert compared(predicting, sampling, count).sum("steps") <= count * steps


def check_a_killed_drafter(compared: Compared, samplings: Sequence[str], services: Services) -> None:
    """A request of each sampling has half of its tokens when it is killed."""
    for sampling in samplings:
        held: list[KilledDrafters] = []

        def killing(client: AsyncClient, held: list[KilledDrafters] = held) -> Around:
            held.append(KilledDrafters(client, services.drafter, spares=0))
            return held[0].around

        compared(None, sampling, grouped=killing)
        assert held[0].kills == 1


def test_seeds_and_samplings_make_a_difference(compared: Compared) -> None:
    """Without differences, the other tests in this file would show little."""
    check_samplings_differ(compared, ("greedy", "T 0.8"), BATCH)


@pytest.mark.parametrize("sampling", ["greedy", "T 0.8"])
def test_in_a_batch(client: Client, compared: Compared, sampling: str) -> None:
    compared(speculating(), sampling, BATCH, batch=BATCH)


@pytest.mark.parametrize(
    ("drafter", "sampling"), [("good_drafter", "greedy"), ("good_drafter", "T 0.8"), ("bad_drafter", "T 0.8")]
)
def test_with_a_drafter(
    client: Client, compared: Compared, address_of: Callable[[str], str], drafter: str, sampling: str
) -> None:
    check_a_drafter(client, compared, sampling, address_of(drafter), BATCH)


@pytest.mark.parametrize(("local", "sampling"), [(LOCAL[0], "T 0.8"), (LOCAL[1], "greedy")])
def test_with_a_drafter_in_the_verifier(
    client: Client, compared: Compared, good_drafter: str, local: str, sampling: str
) -> None:
    check_a_drafter_in_the_verifier(client, compared, sampling, local, good_drafter, 4)


@pytest.mark.parametrize("sampling", ["greedy", "T 0.8"])
def test_with_a_prediction(compared: Compared, sampling: str) -> None:
    check_predictions(compared, sampling, 1)


def test_with_all_drafters_at_once(
    client: Client, compared: Compared, good_drafter: str, bad_drafter: str, untrained_drafter: str
) -> None:
    for address in (good_drafter, bad_drafter, untrained_drafter):
        client.drafters.attach(address)
    for sampling in ("T 1.2, top-p 0.95", "changed logits"):
        compared(speculating(), sampling, 4, batch=4)


@pytest.mark.parametrize(("other", "sampling"), [(OTHERS[0], "T 0.8"), (OTHERS[1], "greedy")])
def test_a_swap_after_every_five_tokens(
    client: Client, long: Compared, address_of: Callable[[str], str], good_drafter: str, other: str, sampling: str
) -> None:
    long.swapping(sampling, good_drafter, address_of(other))


def test_a_drafter_that_is_killed(client: Client, long: Compared, services: Services) -> None:
    check_a_killed_drafter(long, ("T 0.8",), services)


@pytest.mark.slow
class TestEachSampling:
    """More of all."""

    def test_samplings_differ(self, compared: Compared) -> None:
        check_samplings_differ(compared, tuple(SAMPLINGS), LARGE)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_in_a_batch(self, client: Client, compared: Compared, sampling: str) -> None:
        compared(speculating(), sampling, LARGE, batch=LARGE)

    @pytest.mark.parametrize(
        ("sampling", "drafter"), [*product(SAMPLINGS, ("good_drafter", "bad_drafter", "untrained_drafter"))]
    )
    def test_with_a_drafter(
        self, client: Client, compared: Compared, address_of: Callable[[str], str], sampling: str, drafter: str
    ) -> None:
        check_a_drafter(client, compared, sampling, address_of(drafter), LARGE)

    @pytest.mark.parametrize(("sampling", "local"), [*product(SAMPLINGS, LOCAL)])
    def test_with_a_drafter_in_the_verifier(
        self, client: Client, compared: Compared, good_drafter: str, sampling: str, local: str
    ) -> None:
        check_a_drafter_in_the_verifier(client, compared, sampling, local, good_drafter, LARGE)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_with_a_prediction(self, compared: Compared, sampling: str) -> None:
        check_predictions(compared, sampling, 4)

    @pytest.mark.parametrize(("sampling", "other"), [*product(SAMPLINGS, OTHERS)])
    def test_a_swap_after_every_five_tokens(
        self,
        client: Client,
        long: Compared,
        address_of: Callable[[str], str],
        good_drafter: str,
        sampling: str,
        other: str,
    ) -> None:
        long.swapping(sampling, good_drafter, address_of(other))

    def test_a_drafter_that_is_killed(self, client: Client, long: Compared, services: Services) -> None:
        check_a_killed_drafter(long, tuple(SAMPLINGS), services)
