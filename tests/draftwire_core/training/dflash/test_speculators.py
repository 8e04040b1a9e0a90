"""What a training writes is a checkpoint of speculators, and computes there what it computes here.

Needs the library (`pip install speculators`), which is not among the requirements: it asks for older versions of ours.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.anchored_blocks import AnchoredBlocks
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining
from draftwire_core.training.frozen_target.target_states import reading
from tests.harness.models.tiny_checkpoint import write_checkpoint

speculators = pytest.importorskip("speculators", reason="the library speculators is not installed")
DOCUMENTS = [[3 + (7 * start + place) % 50 for place in range(40)] for start in range(12)]
ANCHOR = 23


@pytest.mark.parametrize("draft_vocab", [0, 40])
def test_what_is_written_loads_there(tmp_path: Path, draft_vocab: int) -> None:
    target = write_checkpoint(tmp_path / "target")
    base = AutoModelForCausalLM.from_pretrained(target)
    training = DflashTraining(block=5, anchors=8, steps=5, batch=2, window=32, mask_token=2, draft_vocab=draft_vocab)
    made = DflashTrainer(base, Windows(DOCUMENTS, 32, 6), tmp_path / "out", training, torch.float32)
    made.train(lambda _: None)

    from speculators.models.dflash import DFlashSpeculatorConfig

    config = DFlashSpeculatorConfig.from_pretrained(tmp_path / "out")
    config.transformer_layer_config._attn_implementation = "eager"
    theirs = speculators.SpeculatorModel.from_pretrained(str(tmp_path / "out"), config=config, dtype=torch.float32)
    theirs.eval()
    assert type(theirs).__name__ == "DFlashDraftModel"
    assert (theirs.target_layer_ids, theirs.block_size, theirs.mask_token_id) == ([1, 2], 5, 2)
    tokens = torch.tensor([DOCUMENTS[0]])
    asked = torch.zeros(1, 40)
    asked[0, ANCHOR] = 1
    network = made.network
    with torch.no_grad(), reading(base, network.aux_layers) as read:
        base(tokens)
        states = torch.cat([read[layer] for layer in network.aux_layers], dim=-1)
        _, logits, *_ = theirs._backbone_forward(
            states, tokens, asked, states[..., :32], torch.zeros_like(tokens), max_anchors=1
        )
        blocks = AnchoredBlocks(network.config, network.model)
        ours = blocks.guess(network.mapping(states), tokens[:, ANCHOR : ANCHOR + 1], torch.tensor([[ANCHOR]]))
    assert theirs.use_draft_vocab == (draft_vocab > 0)
    torch.testing.assert_close(ours[0, 0], logits[0, 1:], rtol=1e-4, atol=1e-4)
