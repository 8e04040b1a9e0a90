"""Charging and crediting the drafters in the engine's thread after a step."""

from collections.abc import Sequence as ListLike

import pytest

from draftwire_core.engine.drafters.probing import Probes
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import Node

GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)


def sequence_of(sampling: SamplingParams = GREEDY) -> Sequence:
    return Sequence(SequenceSpec(0, [5], 100, sampling))


def job_of(*sources: str, prober: str | None = None, probes: int = 0) -> VerificationJob:
    """Returns a decoding sequence's job with a node of each source, and probes."""
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
    """A step takes 2 s, plus 0.5 s for each row after the first."""
    made = DraftingAccounts(StepCost([1, 65], [2.0, 34.0]))
    made.add("a")
    made.add("b")
    return made


def balance(accounts: DraftingAccounts, source: str) -> float:
    return accounts._account(source).balance


def settled(
    accounts: DraftingAccounts, jobs: ListLike[VerificationJob], outcomes: ListLike[SequenceOutcome]
) -> dict[str, float]:
    """Returns the amount by which each drafter's balance decreases."""
    before = {source: balance(accounts, source) for source in ("a", "b")}
    accounts.settle(len(jobs), jobs, outcomes)
    return {source: before[source] - balance(accounts, source) for source in before}


def test_seconds_and_rows_are_charged_to_their_drafter(accounts: DraftingAccounts) -> None:
    accounts.spent("a", 0.4, drafted=True)
    lost = settled(accounts, [job_of("a", "a", "b", prober="b", probes=2)], [outcome_of(None)])
    allowance = 0.01 / 2 * 4.5 / 2  # the two drafters share it
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
        assert accounts.open("a") and accounts.paid_off("a") and not accounts.rests("a")
        while accounts.open("a"):
            accounts.spent("a", 1.0, drafted=True)
            accounts.settle(1, [job_of()], [outcome_of(None)])
        assert accounts.open("b")
        assert accounts.rests("a") and not accounts.rests("b")


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


def begun(accounts: DraftingAccounts, source: str) -> float:
    """Returns the balance that a drafter of a single request begins with."""
    accounts.add(source)
    accounts.group(source, "prediction")
    return balance(accounts, source)


def used_up(accounts: DraftingAccounts, source: str) -> None:
    while accounts.open(source):
        accounts.spent(source, 1.0, drafted=True)
        accounts.settle(1, [job_of()], [outcome_of(None)])


def test_drafters_of_single_requests_begin_with_what_their_group_has_left(accounts: DraftingAccounts) -> None:
    assert begun(accounts, "prediction-1") == pytest.approx(3.0)
    accounts.spent("prediction-1", 2.0, drafted=True)
    accounts.settle(1, [job_of()], [outcome_of(None)])
    accounts.remove("prediction-1")
    assert begun(accounts, "prediction-2") == pytest.approx(2.0, abs=0.05)


def test_however_many_drafters_of_single_requests_were_of_no_use_the_next_is_tried(accounts: DraftingAccounts) -> None:
    for number in range(20):
        source = f"prediction-{number}"
        assert begun(accounts, source) >= 0.5
        assert accounts.open(source)
        used_up(accounts, source)
        if number % 2:
            accounts.remove(source)
    assert begun(accounts, "prediction-20") == pytest.approx(0.5)
    accounts.settle(1, [job_of("prediction-20")] * 4, [outcome_of(*["prediction-20"] * 8, None)])
    accounts.remove("prediction-20")
    assert begun(accounts, "prediction-21") == pytest.approx(3.0)


def test_a_first_trial_that_was_not_used_fills_no_purse(accounts: DraftingAccounts) -> None:
    begun(accounts, "prediction-0")
    used_up(accounts, "prediction-0")
    for number in range(1, 20):
        assert begun(accounts, f"prediction-{number}") == pytest.approx(0.5)
        accounts.remove(f"prediction-{number}")


def test_a_group_has_one_share_of_the_allowance(accounts: DraftingAccounts) -> None:
    for number in range(4):
        begun(accounts, f"prediction-{number}")
        used_up(accounts, f"prediction-{number}")
    used_up(accounts, "a")
    sources = ("prediction-0", "prediction-1", "a")
    before = [balance(accounts, source) for source in sources]
    accounts.settle(1, [job_of()], [outcome_of(None)])
    gained = [balance(accounts, source) - old for source, old in zip(sources, before, strict=True)]
    assert gained == pytest.approx([0.01 / 3 / 4, 0.01 / 3 / 4, 0.01 / 3])


def test_one_that_joins_a_group_late_begins_anew(accounts: DraftingAccounts) -> None:
    accounts.add("grammar-1")
    accounts.turn_to([sequence_of()])
    used_up(accounts, "grammar-1")
    accounts.group("grammar-1", "grammar")
    assert accounts.open("grammar-1")
    accounts.group("unknown", "grammar")


def test_a_paused_drafter_drafts_on_demand_and_it_counts_for_nothing(accounts: DraftingAccounts) -> None:
    accounts.remove("b")
    usual = sequence_of()
    demanding = Sequence(SequenceSpec(0, [5], 100, GREEDY, always_draft=True))
    demanding.readers["a"] = ProposalReader("a", 8, 100)
    accounts.turn_to([usual])
    while accounts.open("a"):
        accounts.spent("a", 1.0, drafted=True)
        accounts.settle(1, [job_of()], [outcome_of(None)])
        accounts.turn_to([usual])
    balance = accounts._account("a").balance
    accounts.turn_to([demanding])
    assert accounts.open("a") and not accounts.rest
    accounts.spent("a", 1.0, drafted=True)
    accounts.settle(1, [job_of("a")], [outcome_of("a", None)])
    assert balance < accounts._account("a").balance < balance + 0.1
    accounts.turn_to([usual])
    assert not accounts.open("a") and accounts.rest


def test_the_tokens_of_others_do_not_make_a_drafters_own_worth_less(accounts: DraftingAccounts) -> None:
    """Two drafters, each right about a node of its own sequence, have saved the time of a step without their rows."""
    jobs = [job_of("a"), job_of("b")]
    outcomes = [outcome_of("a", None), outcome_of("b", None)]
    # A plain step of two rows takes 2.5 s. Each row adds 0.5 s, and without one drafter the step has three: 3 s for 3
    # tokens, of which the other one's token is worth a third.
    assert settled(accounts, jobs, outcomes)["a"] == pytest.approx(0.5 / 2.5 - 1 / 3 * 3.0 / 2.5, abs=0.02)
