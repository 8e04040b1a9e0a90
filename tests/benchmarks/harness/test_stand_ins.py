"""Useless drafters and a planner that waits: they behave as the benchmarks assume."""

from types import SimpleNamespace

from benchmarks.harness.stand_ins.lying_drafter import LyingDrafter
from benchmarks.harness.stand_ins.patient_planner import PatientPlanner
from benchmarks.harness.stand_ins.stalled_drafter import StalledDrafter
from draftwire_core.engine.drafters.drafter import Drafter, DraftSpec
from draftwire_core.engine.planning.drafter_timing import DrafterTiming, ProposalClock
from draftwire_core.engine.planning.planner import Candidate
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree

SPEC = DraftSpec([1, 2, 3], SamplingParams(seed=1), max_tree_nodes=6, max_length=40)


def test_a_stalled_drafter_opens_and_says_nothing() -> None:
    drafter: Drafter = StalledDrafter(None, None)
    drafter.open("a", SPEC)
    assert drafter.busy
    growth = drafter.grow()
    assert (growth.opened, growth.proposals, drafter.busy) == (["a"], {}, False)
    drafter.commit("a", 4, [4])
    assert not drafter.busy
    drafter.close("a")


def test_a_liar_answers_every_verdict_within_its_credit() -> None:
    drafter: Drafter = LyingDrafter(SimpleNamespace(vocab_size=50))
    drafter.open("a", SPEC)
    tokens, tree = [1, 2, 3], TokenTree(3, 3)
    reader = ProposalReader("liar", SPEC.max_tree_nodes, 50)
    for step in range(10):
        assert drafter.busy
        growth = drafter.grow()
        assert growth.opened == (["a"] if step == 0 else [])
        proposal = growth.proposals["a"]
        assert reader.merge(proposal, tree, tokens).added == SPEC.max_tree_nodes
        assert max(proposal.log_probs) == min(proposal.log_probs) > -0.02
        assert not drafter.busy
        # Sometimes a false token happens to be right; the nodes below it then stay in the trees of both sides.
        committed = list(proposal.token_ids) if step % 3 == 2 else [51]
        tokens += committed
        tree.commit(committed)
        drafter.commit("a", len(tokens), committed)
    drafter.close("a")
    assert not drafter.busy


def candidate(nodes: int, *, wanted: int = 4, max_position: int = 30, drafted: bool = True) -> Candidate:
    tree = TokenTree(10, 5)
    node = tree.root
    for token in range(nodes):
        node, _ = tree.add(node, token, -0.1, "d")
    clocks = {"d": ProposalClock(DrafterTiming())} if drafted else {}
    return Candidate(tree, clocks, wanted, max_position)


def test_a_patient_planner_waits_for_all_tokens_and_verifies_them() -> None:
    planner = PatientPlanner(StepCost([1, 64], [1.0, 64.0]), 256)
    short, whole = [candidate(3)], [candidate(4)]
    assert planner.worthwhile_wait(planner.plan(short), short, 0.0) > 0
    plan = planner.plan(whole)
    assert planner.worthwhile_wait(plan, whole, 0.0) == 0
    assert [node.token for node in plan.nodes[0]] == [0, 1, 2, 3]


def test_a_patient_planner_waits_for_nobody_and_nothing_of_no_use() -> None:
    planner = PatientPlanner(StepCost([1, 64], [1.0, 64.0]), 256)
    for candidates in ([candidate(0, drafted=False)], [candidate(2, max_position=11)], [candidate(0, wanted=0)]):
        assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == 0
    assert len(planner.plan([candidate(3, max_position=11)]).nodes[0]) == 2
