"""Blocks are guessed once after each verdict, from features that are there, for as many sequences as there is room."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.blocks.block_drafter import ReceivingBlockDrafter
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.dflash.dflash_network import DflashNetwork
from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import VOCABULARY, random_tokens
from tests.harness.models.dflash_checkpoints import dflash_config, write_dflash

GREEDY = SamplingParams(temperature=0.0)
BLOCK, WIDTH = 6, 64


@pytest.fixture
def drafter(tmp_path: Path) -> Iterator[ReceivingBlockDrafter]:
    """One with room for some twenty tokens beside two blocks, and an output head of its own."""
    config = dflash_config(draft_vocab_size=150, block_size=BLOCK)
    dflash = load_dflash(write_dflash(tmp_path, config), TargetShape(3, WIDTH, VOCABULARY, ""), torch.float32)
    dflash.model.set_input_embeddings(torch.nn.Embedding(VOCABULARY, WIDTH))
    drafter = ReceivingBlockDrafter(DflashNetwork(dflash, 36, "tiny"))
    yield drafter
    for key in list(drafter._drafts):
        drafter.close(key)
    assert drafter.model.pool.used == 0


def spec_of(length: int, seed: int = 0) -> DraftSpec:
    return DraftSpec(random_tokens(length, seed=seed), GREEDY, 8, length + 10)


def features(count: int) -> torch.Tensor:
    return torch.randn(count, WIDTH)


def test_once_after_each_verdict(drafter: ReceivingBlockDrafter) -> None:
    drafter.open("a", spec_of(8))
    assert not drafter.busy, "it has no features"
    drafter.receive("a", 0, features(7))
    assert drafter.busy
    first = drafter.grow()
    assert first.opened == ["a"]
    assert len(first.proposals["a"].token_ids) >= 2
    assert not drafter.busy
    drafter.commit("a", 9, [5])
    assert not drafter.busy, "the feature of what was the root is missing"
    drafter.receive("a", 7, features(1))
    assert drafter.busy
    assert drafter.grow().proposals
    assert not drafter.busy
    assert drafter.model.pool.used == 8, "a slot for each token before the root, and none of a block"


def test_nothing_is_guessed_while_features_are_gone(drafter: ReceivingBlockDrafter) -> None:
    drafter.open("a", spec_of(8))
    drafter.receive("a", 0, features(7))
    drafter._look()
    draft = drafter._drafts["a"]
    draft.take_ready(draft.readable)
    assert draft.waits
    drafter._received.open("a")  # as a target does that gives up the sequence's slots
    assert not drafter.busy
    assert drafter.grow().proposals == {}
    drafter._received.add("a", 0, features(7))
    assert drafter.busy


def test_sequences_wait_for_slots(drafter: ReceivingBlockDrafter) -> None:
    for seed, key in enumerate("abc"):
        drafter.open(key, spec_of(9, seed))
        drafter.receive(key, 0, features(8))
    found: set[object] = set()
    for _ in range(20):
        found |= set(drafter.grow().proposals)
        if not drafter.busy:
            break
    assert {"a"} <= found < {"a", "b", "c"}, "the youngest have no room"
    drafter.close("a")
    for _ in range(20):
        found |= set(drafter.grow().proposals)
    assert "b" in found


def test_no_room_for_a_sequence(drafter: ReceivingBlockDrafter) -> None:
    with pytest.raises(DrafterFullError, match="sequence needs 46 KV slots, but there are only 36"):
        drafter.open("a", spec_of(30))
