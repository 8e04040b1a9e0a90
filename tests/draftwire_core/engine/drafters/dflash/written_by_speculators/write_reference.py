"""Writes the reference checkpoints with the library speculators, and what its modules compute with them.

    pip install speculators; python -m
    tests.draftwire_core.engine.drafters.dflash.written_by_speculators.write_reference

Written with speculators 0.9.0. It is not among the requirements: it asks for older versions of ours.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config

VOCABULARY, HIDDEN, LENGTH, ANCHOR, BLOCK, LAYERS = 60, 16, 14, 9, 4, 2
KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "whole": (VOCABULARY, {}, {}),
    "reduced": (24, {"sample_from_anchor": True}, {}),
    "sliding": (
        24,
        {"sliding_window_non_causal": True},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}
"""By name: the draft vocabulary, further fields, and further fields of the layers."""


def write(name: str) -> None:
    """Writes one checkpoint, the inputs, and the logits of a block."""
    drafted, flags, shape = KINDS[name]
    layers = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        **shape,
    )
    layers._attn_implementation = "eager"
    torch.manual_seed(3)
    method = GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    model = DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=drafted,
            block_size=BLOCK,
            aux_hidden_state_layer_ids=[0, 1, 3],
            mask_token_id=59,
            speculators_config=SpeculatorsConfig(
                algorithm="dflash", proposal_methods=[method], default_proposal_method="greedy", verifier=verifier
            ),
            **flags,
        )
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (weight.dim() == 1))
    if drafted < VOCABULARY:
        ids = torch.randperm(VOCABULARY)[:drafted].sort().values
        known = torch.zeros(VOCABULARY, dtype=torch.bool)
        known[ids] = True
        model.load_vocab_mappings(known, ids - torch.arange(drafted))
    place = Path(__file__).parent / name
    model.save_pretrained(place)
    (place / "config.py").unlink()  # the library's own code
    states = torch.randn(1, LENGTH, 3 * HIDDEN)
    tokens = torch.randint(VOCABULARY, (1, LENGTH))
    anchors = torch.zeros(1, LENGTH)
    anchors[0, ANCHOR] = 1
    with torch.no_grad():
        found = model._backbone_forward(
            states, tokens, anchors, torch.randn(1, LENGTH, HIDDEN), torch.zeros_like(tokens), max_anchors=1
        )
    expected = {
        "states": states[0, :ANCHOR].clone(),
        "root": tokens[0, ANCHOR : ANCHOR + 1].clone(),
        "logits": found[1][0].clone(),
        "embed_tokens.weight": model.embed_tokens.weight.detach().clone(),
        "lm_head.weight": model.lm_head.weight.detach().clone(),
    }
    save_file(expected, place / "expected.safetensors")


if __name__ == "__main__":
    for kind in KINDS:
        write(kind)
