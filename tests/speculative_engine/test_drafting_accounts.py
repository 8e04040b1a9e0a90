"""What a step settles with the drafters of the engine's thread."""

from collections.abc import Sequence as ListLike

import pytest

from speculative_engine.drafters.probing import Probes
from speculative_engine.drafting_accounts import DraftingAccounts
from speculative_engine.sampling_params import SamplingParams
from speculative_engine.sequence import Sequence, SequenceSpec
from speculative_engine.step_cost import StepCost
from speculative_engine.step_result import SequenceOutcome
from speculative_engine.token_tree import Node
from speculative_engine.verification_job import VerificationJob

GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)


def sequence_of(sampling: SamplingParams = GREEDY) -> Sequence:
    return Sequence(SequenceSpec(0, [5], 100, sampling))


def job_of(*sources: str, prober: str | None = None, probes: int = 0) -> VerificationJob:
    """A decoding sequence with a node of each source, and probes."""
    sequence = sequence_of()
    root = sequence.tree.root
    job = VerificationJob(
        sequence, 1, [sequence.tree.add(root, 10 + at, -0.1, each)[0] for at, each in enumerate(sources)]
    )
    job.prober = prober
    job.probes = Probes([Node(50 + at, root, 1, 0.0, "", 0) for at in range(probes)], [])
    return job


def outcome_of(*sources: str | None) -> SequenceOutcome:
    return SequenceOutcome(0, list(range(len(sources))), list(sources), 2)


@pytest.fixture
def accounts() -> DraftingAccounts:
    """A step takes 2 s, and 0.5 more for each row after the first."""
    made = DraftingAccounts(StepCost([1, 65], [2.0, 34.0]))
    made.add("a")
    made.add("b")
    return made


def balance(accounts: DraftingAccounts, source: str) -> float:
    return accounts._account(source)._balance


def settled(
    accounts: DraftingAccounts, jobs: ListLike[VerificationJob], outcomes: ListLike[SequenceOutcome]
) -> dict[str, float]:
    """What each drafter's balance has lost."""
    before = {source: balance(accounts, source) for source in ("a", "b")}
    accounts.settle(len(jobs), jobs, outcomes)
    return {source: before[source] - balance(accounts, source) for source in before}


def test_seconds_and_rows_are_charged_to_their_drafter(accounts: DraftingAccounts) -> None:
    accounts.spent("a", 0.4, drafted=True)
    lost = settled(accounts, [job_of("a", "a", "b", prober="b", probes=2)], [outcome_of(None)])
    allowance = 0.01 / 2 * 4.5 / 2  # they divide it
    assert lost["a"] == pytest.approx((0.4 + 2 * 0.5) / 2 - allowance)
    assert lost["b"] == pytest.approx(3 * 0.5 / 2 - allowance)


def test_an_accepted_token_saves_its_share_of_a_step(accounts: DraftingAccounts) -> None:
    accounts.spent("b", 2.0, drafted=True)
    lost = settled(accounts, [job_of(), job_of()], [outcome_of("b", None), outcome_of(None)])
    assert lost["b"] == pytest.approx(2.0 / 2.5 - 0.5 - 0.005)


def test_what_keeps_one_that_rests_up_to_date_is_not_charged(accounts: DraftingAccounts) -> None:
    accounts.spent("a", 1.0)
    assert settled(accounts, [job_of()], [outcome_of(None)])["a"] < 0
    assert accounts.take_seconds() == {"a": 1.0}
    assert accounts.take_seconds() == {}


def test_probes_count_as_drafting_seconds_and_nodes_do_not(accounts: DraftingAccounts) -> None:
    accounts.settle(1, [job_of("a", prober="b", probes=2)], [outcome_of(None)])
    assert accounts.take_seconds() == {"b": pytest.approx(1.0)}


def test_kinds_of_steps_have_accounts_of_their_own(accounts: DraftingAccounts) -> None:
    kinds = [[GREEDY, GREEDY], [SAMPLED], [GREEDY, SAMPLED]]
    for kind in kinds:
        accounts.turn_to([sequence_of(each) for each in kind])
        assert accounts.open("a") and accounts.paid_off("a")
        while accounts.open("a"):
            accounts.spent("a", 1.0, drafted=True)
            accounts.settle(1, [job_of()], [outcome_of(None)])
        assert accounts.open("b")


def test_one_that_comes_again_begins_anew(accounts: DraftingAccounts) -> None:
    while accounts.open("a"):
        accounts.spent("a", 6.0, drafted=True)
        accounts.settle(1, [job_of()], [outcome_of(None)])
    accounts.spent("a", 6.0, drafted=True)
    accounts.remove("a")
    assert accounts.take_seconds() == {}
    accounts.settle(1, [job_of()], [outcome_of(None)])
    accounts.add("a")
    assert settled(accounts, [job_of()], [outcome_of(None)])["a"] < 0
    assert accounts.open("a")


def test_those_of_one_request_share_the_account_of_their_like(accounts: DraftingAccounts) -> None:
    for source in ("prediction-1", "prediction-2"):
        accounts.add(source)
        accounts.share(source, "prediction")
    accounts.spent("prediction-1", 4.0, drafted=True)
    accounts.settle(1, [job_of()], [outcome_of(None)])
    accounts.remove("prediction-1")
    accounts.spent("prediction-2", 4.0, drafted=True)
    accounts.settle(1, [job_of()], [outcome_of(None)])
    assert not accounts.open("prediction-2")
    accounts.add("prediction-3")
    accounts.share("prediction-3", "prediction")
    assert not accounts.open("prediction-3")
    assert accounts.open("a")
    accounts.turn_to([sequence_of()])
    assert not accounts.rest
