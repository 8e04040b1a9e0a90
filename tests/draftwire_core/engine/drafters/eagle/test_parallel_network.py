"""P-EAGLE: several tokens are guessed in one pass, and no token of a target depends on them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from draftwire_core.engine.drafters.blocks.block_drafter import BlockDrafter
from draftwire_core.engine.drafters.blocks.block_network import Block, Reading
from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.eagle.parallel_network import ParallelEagleNetwork
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from tests.harness.engine.engines import VOCABULARY, engine_of, packed, tiny_model
from tests.harness.models.eagle_checkpoints import change_config, change_tensors, write_parallel
from tests.harness.models.eagle_training import SPECS, plain_tokens

REFERENCE = Path(__file__).parent / "written_by_speculators" / "peagle"


@pytest.mark.parametrize("parts", [1, 3])
def test_logits_are_those_of_speculators(parts: int) -> None:
    """The checkpoint and the results were written by speculators itself (`write_reference.py`)."""
    expected = load_file(REFERENCE / "expected.safetensors")
    eagle = load_eagle(REFERENCE, TargetShape(3, 16, 60, "LlamaForCausalLM"), torch.float32)
    assert eagle.target_ids is not None
    with torch.no_grad():
        features = eagle.mapping(expected["states"])
    network = ParallelEagleNetwork(eagle, 32, "reference")
    tokens = expected["tokens"].tolist()
    slots = network.model.pool.take(len(tokens))
    for part in np.array_split(np.arange(len(tokens)), parts):
        read = [tokens[at] for at in part]
        network.read(Reading(slots[: part[0]], read, part + 1, features[part], slots[part]))
    block = Block(slots, tokens[-1], len(tokens), features[-1:])
    for asked in (3, 2):
        logits = network.guess([block, block], asked).view(2, asked, -1)
        for own in logits:
            assert bool((own.isfinite().sum(-1) == 24).all())
            torch.testing.assert_close(own[:, eagle.target_ids], expected["logits"][:asked], rtol=1e-4, atol=1e-5)
    assert network.model.pool.used == len(tokens)


def test_no_token_depends_on_it(tmp_path: Path) -> None:
    target = packed(tiny_model("Llama"), 1000)
    drafter = eagle3_drafter(EagleOptions(str(write_parallel(tmp_path))), target)
    drafter._share = 0.01
    engine = engine_of(target)
    engine.add_drafter("parallel", drafter)
    for spec in SPECS:
        engine.add(spec)
        engine.attach(spec.sequence_id, "parallel")
    assert isinstance(drafter._drafter, BlockDrafter)
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
    drafted = 0
    while engine.running:
        for outcome in engine.step().outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
            drafted += sum(outcome.drafted.values())
    assert tokens == plain_tokens()
    assert drafted > 20
    assert drafter.model.pool.used == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mask_token_id": None}, "mask_token_id must be a token's id below 300, got None"),
        (
            {"speculators_config": {"algorithm": "peagle", "proposal_methods": []}},
            "speculators_config.proposal_methods must be a list of objects",
        ),
        (
            {"speculators_config": {"algorithm": "peagle", "proposal_methods": [{"speculative_tokens": 999}]}},
            r"speculative_tokens must be at most 128, got 999",
        ),
        ({"speculators_config": {"algorithm": "eagle3"}}, "speculators_config.algorithm must be 'peagle'"),
    ],
)
def test_bad_fields(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_eagle(change_config(write_parallel(tmp_path), **fields), TargetShape(3, 64, VOCABULARY, ""), torch.float32)


def test_a_missing_vector_of_masks(tmp_path: Path) -> None:
    directory = change_tensors(write_parallel(tmp_path), mask_hidden=None)
    with pytest.raises(ValueError, match="tensor mask_hidden is missing"):
        load_eagle(directory, TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM"), torch.float32)
