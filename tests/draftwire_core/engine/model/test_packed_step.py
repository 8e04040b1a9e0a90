"""Packed steps as numbers: one process reads what another one wrote."""

import numpy as np
import pytest
import torch

from draftwire_core.engine.model.cuda.slots.slot_layout import ranges_of
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_step import StepDecoder, StepEncoder

CPU = torch.device("cpu")


def batch_of(lanes: list[tuple[np.ndarray, list[int]]], first_query: int = 0) -> PackedBatch:
    """Builds lanes of a context and the tokens after it, each token in slot token + 10000."""
    builder = BatchBuilder()
    for context, tokens in lanes:
        rows = [
            builder.add_row(token, len(context) + index, token + 10_000, index == len(tokens) - 1)
            for index, token in enumerate(tokens)
        ]
        builder.add_lane(context, rows, first_query)
    return builder.build(3, CPU)


def same(left: PackedBatch, right: PackedBatch) -> None:
    for name in ("token_ids", "positions", "slots", "logit_rows"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    assert left.group_size == right.group_size
    assert len(left.lanes) == len(right.lanes)
    for one, other in zip(left.lanes, right.lanes, strict=True):
        assert np.array_equal(one.context, other.context)
        assert (one.rows, one.first_query) == (other.rows, other.first_query)


class Wire:
    """An encoder and the decoder that reads its numbers."""

    def __init__(self) -> None:
        self.encoder, self.decoder = StepEncoder(), StepDecoder()

    def send(self, batch: PackedBatch) -> int:
        """Checks that the batch arrives unchanged; returns the number of numbers sent."""
        numbers = self.encoder.encode(batch)
        assert numbers.dtype == np.int64
        same(self.decoder.decode(numbers, CPU), batch)
        return len(numbers)


def test_a_batch_arrives_as_it_was() -> None:
    wire = Wire()
    wire.send(batch_of([(np.empty(0, dtype=np.int64), [5, 6, 7])]))
    wire.send(batch_of([(np.array([1, 2, 3]), [5]), (np.array([9, 4]), [1, 2])], first_query=1))
    wire.send(batch_of([]))


def test_lanes_without_logits_arrive() -> None:
    builder = BatchBuilder()
    builder.add_lane(np.empty(0, dtype=np.int64), [builder.add_row(3, 0, 8, False)])
    Wire().send(builder.build(1, CPU))


def test_branches_tell_their_context_once() -> None:
    context = np.arange(1, 1001)
    alone = Wire().send(batch_of([(context, [1])]))
    branches = Wire().send(batch_of([(context, [1]), (context, [2]), (context.copy(), [3])]))
    assert branches < alone + 50


def test_lanes_share_what_they_shared() -> None:
    """Adjacent lanes of one context are one sequence, so that every rank lays out a step alike. Two sequences may have
    equal contexts, by a prefix that both have."""
    context = np.arange(1, 130)
    wire = Wire()
    for _ in range(2):
        batch = batch_of([(context, [1]), (context, [2]), (context.copy(), [3]), (context[:60], [4]), (context, [5])])
        same(found := wire.decoder.decode(wire.encoder.encode(batch), CPU), batch)
        assert [len(lanes) for lanes in ranges_of(found.lanes)] == [2, 1, 1, 1]
        assert [len(lanes) for lanes in ranges_of(batch.lanes)] == [2, 1, 1, 1]


def test_what_is_told_does_not_grow_with_the_context() -> None:
    """Chunks, single tokens, a rollback and another branch of two sequences."""
    rng = np.random.default_rng(3)
    slots = rng.permutation(np.arange(1, 9001))
    one, two = slots[:4000], slots[4000:8000]
    wire = Wire()
    wire.send(batch_of([(one[:2000], [1]), (two[:3000], [2])]))
    for step in range(1, 200):
        assert wire.send(batch_of([(one[: 2000 + 3 * step], [1]), (two[: 3000 + step], [2])])) < 300
    rolled_back = np.concatenate([one[:2590], slots[8000:8010]])
    assert wire.send(batch_of([(rolled_back, [1]), (two[:3200], [2])])) < 300


def test_sequences_that_share_a_prefix_are_told_apart() -> None:
    prefix = np.arange(1, 513)
    wire = Wire()
    tails = [np.arange(1000 * n, 1000 * n + 40) for n in range(1, 6)]
    for length in (5, 20, 40):
        wire.send(batch_of([(np.concatenate([prefix, tail[:length]]), [7]) for tail in tails]))
    wire.send(batch_of([(np.concatenate([prefix, tail]), [7]) for tail in reversed(tails)]))


def test_slots_that_went_to_another_sequence_are_told_anew() -> None:
    wire = Wire()
    slots = np.arange(1, 301)
    wire.send(batch_of([(slots, [1])]))
    reused = slots.copy()
    reused[3] = 999
    wire.send(batch_of([(reused, [1])]))
    wire.send(batch_of([(slots[::-1].copy(), [1])]))


def test_random_steps_arrive() -> None:
    rng = np.random.default_rng(11)
    wire = Wire()
    contexts = [rng.permutation(5000)[: rng.integers(0, 400)] for _ in range(6)]
    for _ in range(200):
        for index in range(len(contexts)):
            kept = (
                contexts[index][: rng.integers(0, len(contexts[index]) + 1)] if rng.random() < 0.3 else contexts[index]
            )
            contexts[index] = np.concatenate([kept, rng.integers(1, 5000, rng.integers(0, 90))])[:600]
        order = rng.permutation(len(contexts))[: rng.integers(1, 7)]
        wire.send(batch_of([(contexts[index], [1, 2]) for index in order], first_query=int(rng.integers(0, 2))))


def test_a_torn_step_is_an_error() -> None:
    numbers = StepEncoder().encode(batch_of([(np.array([1, 2, 3]), [5, 6])]))
    with pytest.raises(ValueError, match="does not match its head"):
        StepDecoder().decode(numbers[:-1], CPU)
