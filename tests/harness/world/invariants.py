"""Invariants of the conversation between a verifier and its drafters."""

from __future__ import annotations

from typing import Any

from draftwire_core.engine.tree.token_tree import Node, NodeState
from draftwire_core.pool.drafter.service_drafter import ServiceDrafter
from tests.harness.world.held_calls import HeldCall
from tests.harness.world.world import MAX_TREE_NODES, Drafter, World


def check(world: World) -> None:
    """Raises AssertionError if an invariant is violated."""
    _outputs(world)
    _verifier_slots(world)
    for drafter in world.drafters.values():
        _drafter_slots(drafter)
        for call in drafter.calls:
            assert not call.unjust, call.unjust[0]
            _mirrors(world, drafter, call)
    _local_mirrors(world)
    _credit(world)
    _logs(world)


def _outputs(world: World) -> None:
    for asked in world.requests:
        if asked.running is not None:
            prompt = list(asked.request.token_ids.ids)
            committed = asked.running.tokens[len(prompt) :]
            assert committed == asked.plain[: len(committed)], "committed tokens differ from plain decoding"
        got = asked.output.token_ids
        assert got == asked.plain[: len(got)], "the client got tokens that differ from plain decoding"


def _verifier_slots(world: World) -> None:
    held: dict[int, tuple[int, ...]] = {}
    for sequence in world.sequences.values():
        for position, slot in enumerate(sequence.slots.array().tolist(), start=1):
            path = tuple(sequence.tokens[:position])
            assert held.setdefault(slot, path) == path, "two tokens share a slot of the verifier"
    assert world.engine.model.pool.used == len(held), "the verifier leaks slots"


def _drafter_slots(drafter: Drafter) -> None:
    held: list[int] = []
    for draft in drafter.drafts.values():
        held += draft.slots.array().tolist()
        held += [node.slot for node in draft.tree.nodes() if node.slot >= 0]
    assert len(held) == len(set(held)), f"two tokens share a slot of drafter {drafter.name}"
    assert drafter.drafting.model.pool.used == len(held), f"drafter {drafter.name} leaks slots"


def _mirrors(world: World, drafter: Drafter, call: HeldCall) -> None:
    """Checks that both sides have the same tokens and nodes if no message is in transit or held back."""
    if not (call.quiet and world.thread.idle and drafter.thread.idle) or world.gathers:
        return
    running = {asked.running.sequence_id for asked in world.requests if asked.running is not None and not asked.ended}
    untold = _untold(world)
    for sequence_id, epoch in call.opened.items():
        if (sequence_id, epoch) in call.tainted:
            continue
        if (sequence_id, epoch) in untold:
            world.seen["untold"] += 1
            continue
        assert sequence_id in running, "a drafter drafts for a request that has ended"
        sequence = world.sequences[sequence_id]
        drafts = _drafts(drafter, sequence_id, epoch)
        assert drafts, "a drafter lacks a sequence that is open"
        assert any(draft.tokens == sequence.tokens for draft in drafts), "the two sides have different tokens"
        drafted = [{node.id: _path(node, draft.tree.root) for node in draft.tree.nodes()} for draft in drafts]
        known = [
            {
                node_id: _path(node, sequence.tree.root)
                for node_id, node in reader._known.items()
                if isinstance(node, Node) and node.state is NodeState.LIVE
            }
            for source, reader in sequence.readers.items()
            if source.partition("#")[0] in (drafter.name, drafter.address)
        ]
        assert any(nodes in known for nodes in drafted), "the two sides have different trees"
        world.seen["mirrors compared"] += 1
        world.seen["nodes compared"] += len(drafted[0])


def _untold(world: World) -> set[tuple[int, int]]:
    """Returns the openings whose drafter is paused and gets all missed steps at once later."""
    return {
        (sequence_id, opening.epoch)
        for drafter in world.verifier.pool.roster
        if isinstance(drafter, ServiceDrafter) and drafter._conversation is not None
        for sequence_id, opening in drafter._conversation._open._openings.items()
        if opening.held
    }


def _local_mirrors(world: World) -> None:
    """Checks that drafters inside the verifier, which get each update at once, have the verifier's tokens and nodes."""
    for source, drafter in world.engine._local._drafters.items():
        for sequence_id, draft in drafter._drafts.items():
            sequence = world.engine._queue.find(sequence_id)
            assert sequence is not None, "a drafter drafts for a request that has ended"
            assert draft.tree.committed_length == len(sequence.tokens), "the two sides have different tokens"
            live = [
                _path(node, sequence.tree.root)
                for node in sequence.readers[source]._known.values()
                if isinstance(node, Node) and node.state is NodeState.LIVE
            ]
            drafted = [_path(node, draft.tree.root) for node in draft.tree.nodes()]
            assert sorted(live) == sorted(drafted), "the two sides have different trees"
            world.seen["local mirrors compared"] += 1
            world.seen["local nodes compared"] += len(drafted)


def _drafts(drafter: Drafter, sequence_id: int, epoch: int) -> list[Any]:
    """Returns a drafter's state for an opening: two items if two drafters have used the same count for it."""
    return [draft for key, draft in drafter.drafts.items() if (key.sequence_id, key.epoch) == (sequence_id, epoch)]


def _path(node: Node, root: Node) -> tuple[int, ...]:
    return tuple(each.token for each in node.path_from(root))


def _credit(world: World) -> None:
    for sequence in world.engine._running.values():
        for reader in sequence.readers.values():
            live = [each for each in reader._known.values() if isinstance(each, Node) and each.state is NodeState.LIVE]
            assert len(live) <= MAX_TREE_NODES, "a drafter has more nodes than its credit"
    if world.engine._next.planned is not None:
        for nodes in world.engine._next.planned.plan.nodes:
            assert len(nodes) <= MAX_TREE_NODES, "the planner takes more nodes than the limit"
    for drafter in world.drafters.values():
        for draft in drafter.drafts.values():
            assert draft.tree.size <= draft.spec.max_tree_nodes, "a drafter grows beyond its credit"


def _logs(world: World) -> None:
    for entry in world.log:
        assert entry["log_level"] not in ("error", "critical"), entry
        assert "exc_info" not in entry, entry
        world.seen[f"log: {entry['event']}"] += 1
    world.log.clear()
    assert not world.verifier.failures
    assert not world.unseen, world.unseen
