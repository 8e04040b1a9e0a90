"""Writes the reference checkpoints with the library speculators, and what its modules compute with them.

    pip install speculators; python -m tests.speculative_engine.drafters.eagle.written_by_speculators.write_reference

Written with speculators 0.9.0. It is not among the requirements: it asks for older versions of ours.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

VOCABULARY, HIDDEN, DRAFTED, PREFIX, STEPS = 60, 16, 24, 7, 3
KINDS: dict[str, tuple[Any, dict[str, bool]]] = {
    "llama": (LlamaConfig, {"norm_before_residual": True}),
    "qwen3": (Qwen3Config, {"norm_output": True, "fc_norm": True}),
}


def write(name: str) -> None:
    """Writes one checkpoint, the inputs, and the logits of a prefix and of the tokens drafted behind it."""
    make, flags = KINDS[name]
    layers = make(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
    )
    layers._attn_implementation = "eager"
    torch.manual_seed(3)
    method = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=DRAFTED,
            eagle_aux_hidden_state_layer_ids=[0, 1, 3],
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3", proposal_methods=[method], default_proposal_method="greedy", verifier=verifier
            ),
            **flags,
        )
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (weight.dim() == 1))
    ids = torch.randperm(VOCABULARY)[:DRAFTED].sort().values
    drafted = torch.zeros(VOCABULARY, dtype=torch.bool)
    drafted[ids] = True
    model.load_vocab_mappings(drafted, ids - torch.arange(DRAFTED))
    place = Path(__file__).parent / name
    model.save_pretrained(place)
    (place / "config.py").unlink()  # the library's own code
    states = torch.randn(1, PREFIX + STEPS, 3 * HIDDEN)
    tokens = torch.randint(VOCABULARY, (1, PREFIX + STEPS))
    found: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _, inputs, logits: found.append(logits[0]))
    with torch.no_grad():
        model(states, tokens, torch.zeros_like(tokens), ttt_steps=STEPS)
    logits = [found[0][:PREFIX], *(each[PREFIX - 1 : PREFIX] for each in found[1:])]
    expected = {
        "states": states[0, :PREFIX].clone(),
        "tokens": tokens[0, : PREFIX + STEPS - 1].clone(),
        "logits": torch.cat(logits),
    }
    save_file(expected, place / "expected.safetensors")


if __name__ == "__main__":
    for kind in KINDS:
        write(kind)
