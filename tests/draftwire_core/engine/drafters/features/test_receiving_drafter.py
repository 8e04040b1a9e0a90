"""EAGLE-3 that is given features drafts as the one beside the target does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec, FeatureDrafter
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.drafters.features.reading_drafter import own_tap
from draftwire_core.engine.drafters.features.receiving_drafter import ReceivingDrafter
from draftwire_core.engine.engine.feature_streams import FeatureKind
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import (
    GREEDY,
    VOCABULARY,
    engine_of,
    packed,
    tiny_model,
)
from tests.harness.models.eagle_training import SPECS, plain_tokens

SHAPE = TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM")


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


class Pair:
    """An engine, and a drafter that gets its verdicts and features after each step and answers before the next."""

    def __init__(self, directory: Path, *, dtype: str = "float32", slots: int = 1000, **limits: int):
        self.engine = engine_of(packed(tiny_model("Llama"), 1000), **limits)
        eagle = load_eagle(directory, SHAPE, torch.float32)
        network = PackedModel(eagle.model, slots, row_exact=False)
        self.drafter = ReceivingDrafter(network, eagle.target_ids, own_tap(network, torch.nn.Identity()))
        states = SlotStates(1000, 64, torch.float32)
        self.dtype = dtype
        kind = FeatureKind(eagle.aux_layers, "", "")
        self.engine.features.add("far", kind, dtype, Tap(eagle.aux_layers, eagle.mapping, states))
        self.accepted = 0

    def run(self, specs: Sequence[SequenceSpec]) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
        for spec in specs:
            self.engine.add(spec)
            self.engine.attach(spec.sequence_id, "far")
            self.drafter.open(spec.sequence_id, DraftSpec(spec.tokens, spec.sampling, 16, spec.max_length))
        while self.engine.running:
            result = self.engine.step()
            for outcome in result.outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                self.accepted += outcome.accepted
                self.drafter.commit(outcome.sequence_id, outcome.committed_length, outcome.tokens)
                if outcome.finish is not None:
                    self.drafter.close(outcome.sequence_id)
            for each in result.features:
                self.drafter.receive(each.sequence_id, each.first_position, decode(each.values, 64, self.dtype))
                self.engine.features.sent("far", len(each.values))
            draft(self.drafter, self.engine)
        return tokens


def draft(drafter: ReceivingDrafter, engine: VerificationEngine) -> None:
    for _ in range(6):
        if not drafter.busy:
            return
        for key, proposal in drafter.grow().proposals.items():
            assert isinstance(key, int)
            engine.propose(key, "far", proposal)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_its_guesses_are_as_good(trained: Path, plain: dict[int, list[int]], dtype: str) -> None:
    pair = Pair(trained, dtype=dtype)
    assert isinstance(pair.drafter, FeatureDrafter)
    assert pair.run(SPECS) == plain
    assert pair.accepted > 80, "as with the features that do not travel, see test_eagle3"
    assert pair.drafter.model.pool.used == 0
    assert not pair.drafter._received._received


def test_prompts_in_parts(trained: Path, plain: dict[int, list[int]]) -> None:
    pair = Pair(trained, max_step_rows=16)
    assert pair.run(SPECS) == plain
    assert pair.accepted > 60


def test_sequences_that_give_up_their_slots_read_the_same_features_again(
    trained: Path, plain: dict[int, list[int]]
) -> None:
    pair = Pair(trained, slots=150)
    assert pair.run(SPECS) == plain
    assert pair.drafter.preemptions > 0
    assert pair.accepted > 30


def test_an_opening_that_replaces_another_starts_without_features(trained: Path) -> None:
    drafter = Pair(trained).drafter
    spec = DraftSpec([5, 9, 14], GREEDY, 16, 40)
    drafter.open(0, spec)
    drafter.receive(0, 0, torch.zeros(2, 64))
    assert drafter.busy
    drafter.open(0, spec)
    assert not drafter.busy
    with pytest.raises(KeyError):
        drafter.receive(1, 0, torch.zeros(1, 64))
