"""Blocks that are guessed for whole texts at once are those of speculators, and of drafting."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import MuseGlimmerAssistantModel

from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.training.dflash.anchored_blocks import AnchoredBlocks
from tests.harness.engine.engines import VOCABULARY, tiny_model
from tests.harness.models.dflash_checkpoints import as_assistant, write_dflash

REFERENCE = Path(__file__).parents[3] / "draftwire_core/engine/drafters/dflash/written_by_speculators"


@pytest.mark.parametrize("name", ["whole", "reduced", "sliding"])
def test_logits_are_those_of_speculators(name: str) -> None:
    """With its checkpoints and results; other blocks, and features from the anchor on, change nothing."""
    expected = load_file(REFERENCE / name / "expected.safetensors")
    dflash = load_dflash(REFERENCE / name, TargetShape(3, 16, 60, "LlamaForCausalLM"), torch.float32)
    dflash.model.get_input_embeddings().weight = nn.Parameter(expected["embed_tokens.weight"], requires_grad=False)
    dflash.model.get_output_embeddings().weight = nn.Parameter(expected["lm_head.weight"], requires_grad=False)
    anchor = len(expected["states"])
    torch.manual_seed(0)
    states = torch.cat([expected["states"], torch.randn(6, expected["states"].shape[1])])
    anchors = torch.tensor([[2, anchor, anchor + 5], [anchor, 0, 7]])
    roots = torch.tensor([[7, int(expected["root"]), 9], [int(expected["root"]), 11, 13]])
    with torch.no_grad():
        features = dflash.mapping(states).expand(2, -1, -1)
        logits = AnchoredBlocks(dflash.config, dflash.model).guess(features, roots, anchors)
    theirs = expected["logits"][-dflash.config.guesses :]
    assert logits.shape == (2, 3, dflash.config.guesses, dflash.config.draft_vocab_size)
    for found in (logits[0, 1], logits[1, 0]):
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-5)


def test_hidden_states_are_those_of_transformers(tmp_path: Path) -> None:
    """Of the assistant model that `DFlashTokenCandidateGenerator` drafts with."""
    directory = as_assistant(write_dflash(tmp_path))
    theirs = MuseGlimmerAssistantModel.from_pretrained(directory, dtype=torch.float32).eval()
    target = tiny_model("Llama")
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    dflash = load_dflash(directory, TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM"), torch.float32)
    dflash.model.get_input_embeddings().weight = nn.Parameter(embedding.detach(), requires_grad=False)
    dflash.model.get_output_embeddings().weight = nn.Parameter(head.detach(), requires_grad=False)
    torch.manual_seed(0)
    states, anchors = torch.randn(1, 12, 2 * 64), torch.tensor([[3, 11]])
    roots = torch.tensor([[7, 9]])
    block = dflash.config.block_size
    with torch.no_grad():
        logits = AnchoredBlocks(dflash.config, dflash.model).guess(dflash.mapping(states), roots, anchors)
        for index, anchor in enumerate(anchors[0].tolist()):
            noise = torch.tensor([[int(roots[0, index]), *[dflash.config.mask_token] * (block - 1)]])
            out = theirs(
                noise_embeds=embedding[noise],
                context_hidden_states=states[:, :anchor],
                position_ids=torch.arange(anchor + block).unsqueeze(0),
            )
            expected = out.last_hidden_state[0, 1:] @ head.T
            torch.testing.assert_close(logits[0, index], expected, rtol=1e-4, atol=1e-4)
