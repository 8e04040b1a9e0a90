"""Checks that the slots of an engine add up."""

from draftwire_core.engine.engine.verification_engine import VerificationEngine


def check_slots(engine: VerificationEngine) -> None:
    """Checks an engine between steps: the used slots are those of the running sequences' computed tokens, sequences
    share a slot only for a common prefix, and no sequence waits that could run."""
    queue = engine._queue
    held: dict[int, list[int]] = {}
    for sequence in queue.running.values():
        for end, slot in enumerate(sequence.slots.array().tolist(), start=1):
            assert held.setdefault(slot, sequence.tokens[:end]) == sequence.tokens[:end]
    assert len(held) == engine.model.pool.used
    assert all(len(sequence.slots) == 0 for sequence in queue.waiting.values())
    assert queue.running or not queue.waiting
    waiting = list(queue.waiting)
    queue.admit()
    assert list(queue.waiting) == waiting
