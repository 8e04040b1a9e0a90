"""Faults planted in the services and the engine: the invariants of the state machine must notice each of them."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kv.kv_slots import SlotList, SlotPool
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import Node, TokenTree
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.plays import Play, play, play_at_random
from tests.harness.world.protocol_machine import ProtocolMachine
from tests.harness.world.request_choices import PROMPTS, SAMPLINGS, request_of

Patch = pytest.MonkeyPatch


def no_pruning(patch: Patch) -> None:
    """Makes the drafter draft below nodes that the verdict has pruned, as if they were still useful."""
    commit, commit_tree = DraftModelDrafter.commit, TokenTree.commit

    def without_pruning(self: TokenTree, tokens: Sequence[int]) -> tuple[list[Node], list[Node]]:
        children = list(self.root.children.values())
        walked, pruned = commit_tree(self, tokens)
        if not self.size:
            for child in children:
                node, _ = self.add(self.root, child.token, child.log_prob, child.source)
                node.id = child.id
        return walked, pruned

    def follow(self: DraftModelDrafter, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(TokenTree, "commit", without_pruning)
            commit(self, key, committed_length, tokens)

    patch.setattr(DraftModelDrafter, "commit", follow)


def slots_kept(patch: Patch) -> None:
    """Makes a verdict free no slots of pruned nodes."""
    commit = DraftModelDrafter.commit

    def keep(self: DraftModelDrafter, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        give_back = self.model.pool.give_back
        self.model.pool.give_back = lambda slots: None  # type: ignore[method-assign]
        try:
            commit(self, key, committed_length, tokens)
        finally:
            self.model.pool.give_back = give_back  # type: ignore[method-assign]

    patch.setattr(DraftModelDrafter, "commit", keep)


def slots_of_a_removed_sequence_kept(patch: Patch) -> None:
    """Makes a cancelled request keep its slots."""
    remove = VerificationEngine.remove

    def keep(self: VerificationEngine, sequence_id: int) -> None:
        if sequence_id in self._running:
            self._running[sequence_id].slots = SlotList()
        remove(self, sequence_id)

    patch.setattr(VerificationEngine, "remove", keep)


def stale_nodes_at_the_root(patch: Patch) -> None:
    """Merges nodes that are outdated by a verdict below the new root."""
    resolve = ProposalReader._resolve

    def anywhere(self: ProposalReader, node_id: int) -> Node | int:
        found = resolve(self, node_id)
        return found if found is not None else self._seen_length - 1

    patch.setattr(ProposalReader, "_resolve", anywhere)


def drafts_are_trusted(patch: Patch) -> None:
    """Accepts the first draft token, whatever the target draws."""
    walk = VerificationJob.walk

    def trust(self: VerificationJob, rows: AskedRows) -> tuple[list[Node], list[int]]:
        if self.nodes:
            rows.drawn[0] = self.nodes[0].token
        return walk(self, rows)

    patch.setattr(VerificationJob, "walk", trust)


def no_rollback(patch: Patch) -> None:
    """Keeps the slots of the first verified nodes, accepted or not."""

    def commit(self: VerificationJob, accepted: list[Node]) -> None:
        self.sequence.slots.extend(self.slots[: len(self.chain) + len(accepted)])

    def rollback(self: VerificationJob, accepted: list[Node], pool: SlotPool) -> None:
        pool.give_back(np.array(self.slots[len(self.chain) + len(accepted) :]))

    patch.setattr(VerificationJob, "commit", commit)
    patch.setattr(VerificationJob, "rollback", rollback)


# ---- plays that show them --------------------------------------------------------------------------------------------


def drafts_of_which_few_are_right(playing: Play) -> None:
    """The verdicts prune nodes and leave slots free."""
    playing.begin(["poor"], [request_of()])
    playing.go_on(3)
    playing.rest()


def a_request_that_is_cancelled(playing: Play) -> None:
    playing.begin(["good"], [request_of()])
    playing.go_on(2)
    playing.cancel(0)
    playing.step(1)


def a_proposal_that_comes_too_late(playing: Play) -> None:
    """The verifier takes a step, and commits another token, while the proposal is on its way."""
    playing.begin(["wild"], [request_of()])
    playing.go_on(1)
    playing.grow("wild", 1)
    playing.step(1)
    playing.rest()


def drafts_of_which_none_is_right(playing: Play) -> None:
    playing.begin(["wild"], [request_of()])
    playing.go_on(3)


def trees_in_which_later_branches_are_right(playing: Play) -> None:
    """The accepted nodes are not the first ones laid out."""
    sampled = SAMPLINGS[1]
    playing.begin(["poor"], [request_of(PROMPTS[3], sampled), request_of(PROMPTS[1], sampled)])
    for _ in range(12):
        playing.go_on(1)


SHOWN: dict[Callable[[Patch], None], tuple[Callable[[Play], None], str]] = {
    no_pruning: (drafts_of_which_few_are_right, "the two sides have different trees"),
    slots_kept: (drafts_of_which_few_are_right, "drafter poor leaks slots"),
    slots_of_a_removed_sequence_kept: (a_request_that_is_cancelled, "the verifier leaks slots"),
    stale_nodes_at_the_root: (a_proposal_that_comes_too_late, "the two sides have different trees"),
    drafts_are_trusted: (drafts_of_which_none_is_right, "committed tokens differ from plain decoding"),
    no_rollback: (trees_in_which_later_branches_are_right, "committed tokens differ from plain decoding"),
}
"""For each fault the play that shows it, and the invariant that it violates."""


@pytest.mark.parametrize("plant", SHOWN, ids=lambda plant: plant.__name__)
def test_they_show(
    plant: Callable[[Patch], None], checkpoints: Checkpoints, reference: PlainReference, monkeypatch: Patch
) -> None:
    scenario, message = SHOWN[plant]
    with play(checkpoints, reference) as playing:
        scenario(playing)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message), play(checkpoints, reference) as playing:
        scenario(playing)


@pytest.mark.slow
@pytest.mark.parametrize("plant", SHOWN, ids=lambda plant: plant.__name__)
class TestSearches:
    """Random searches that know nothing of the fault must find it, too."""

    def test_random_plays_show_them(
        self, plant: Callable[[Patch], None], checkpoints: Checkpoints, reference: PlainReference, monkeypatch: Patch
    ) -> None:
        plant(monkeypatch)
        with pytest.raises((AssertionError, ValueError, TimeoutError)):
            for seed in range(200):
                with play(checkpoints, reference) as playing:
                    play_at_random(playing, seed, 60)

    def test_hypothesis_shows_them(
        self, plant: Callable[[Patch], None], checkpoints: Checkpoints, reference: PlainReference, monkeypatch: Patch
    ) -> None:
        """Some schedules each time: the rarest fault takes minutes now and then."""
        plant(monkeypatch)
        # A schedule that failed once and not again (Flaky) has shown it, too.
        with pytest.raises((AssertionError, ValueError, TimeoutError, Flaky)):
            run_state_machine_as_test(
                lambda: ProtocolMachine(checkpoints, reference, Counter()),
                settings=settings(
                    derandomize=False,
                    max_examples=800,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.generate],
                    report_multiple_bugs=False,
                ),
            )
