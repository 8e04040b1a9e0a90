"""Writes the reference checkpoints with the library speculators, and what its modules compute with them.

    pip install speculators; python -m tests.draftwire_core.engine.drafters.eagle.written_by_speculators.write_reference

Written with speculators 0.9.0. It is not among the requirements: it asks for older versions of ours.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
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
    layers = _layers(make, num_hidden_layers=1)
    torch.manual_seed(3)
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=DRAFTED,
            eagle_aux_hidden_state_layer_ids=[0, 1, 3],
            speculators_config=_method("eagle3"),
            **flags,
        )
    ).eval()
    place, states = _save(model, name), _states(PREFIX + STEPS)
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


def write_parallel() -> None:
    """Writes a P-EAGLE checkpoint, the inputs, and the logits of a block behind a prefix."""
    layers = _layers(Qwen3Config, num_hidden_layers=2)
    torch.manual_seed(4)
    model = PEagleDraftModel(
        PEagleSpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=DRAFTED,
            eagle_aux_hidden_state_layer_ids=[0, 1, 3],
            mask_token_id=VOCABULARY - 1,
            norm_before_fc=True,
            speculators_config=_method("peagle"),
        )
    ).eval()
    place, tokens, states = _save(model, "peagle"), torch.randint(VOCABULARY, (1, PREFIX)), _states(PREFIX)
    # Every token of the prefix, and behind its last one a chain of masks.
    anchors = torch.tensor([*range(PREFIX), *[PREFIX - 1] * (STEPS - 1)])
    depths = torch.tensor([*[0] * PREFIX, *range(1, STEPS)])
    core.generate_cod_sample_indices = lambda **_: (anchors, depths)
    core.compute_metrics = lambda **_: (None, {})  # its losses need a GPU
    padded = torch.nn.functional.pad(states, (0, 0, 0, STEPS)), torch.nn.functional.pad(tokens, (0, STEPS))
    found: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _, inputs, logits: found.append(logits[0]))
    with torch.no_grad():
        model(*padded, torch.zeros_like(padded[1]), verifier_last_hidden_states=torch.zeros(1, PREFIX + STEPS, HIDDEN))
    expected = {"states": states[0].clone(), "tokens": tokens[0].clone(), "logits": found[0][PREFIX - 1 :].clone()}
    save_file(expected, place / "expected.safetensors")


def _layers(make: Any, **fields: Any) -> Any:
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    layers = make(vocab_size=VOCABULARY, head_dim=8, max_position_embeddings=64, **sizes, **fields)
    layers._attn_implementation = "eager"
    return layers


def _method(algorithm: str) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def _states(count: int) -> torch.Tensor:
    return torch.randn(1, count, 3 * HIDDEN)


def _save(model: Any, name: str) -> Path:
    """Gives a model random weights and a random vocabulary, and writes it."""
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
    return place


if __name__ == "__main__":
    for kind in KINDS:
        write(kind)
    write_parallel()
