"""All layouts load and compute the same, and what does not fit or is not supported is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

from draftwire_core.engine.drafters.blocks.block_network import Block, Reading
from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash, load_dflash
from draftwire_core.engine.drafters.dflash.dflash_network import DflashNetwork
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from tests.harness.engine.engines import VOCABULARY, packed, tiny_model
from tests.harness.models.dflash_checkpoints import as_assistant, as_original, dflash_config, write_dflash
from tests.harness.models.eagle_checkpoints import change_config, change_tensors
from tests.harness.models.random_network import config_of

SHAPE = TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM")
REFERENCE = Path(__file__).parent / "written_by_speculators"


def lend(dflash: Dflash, embedding: torch.Tensor, head: torch.Tensor) -> None:
    """Fills in what the checkpoint leaves to the target."""
    if "embed_tokens.weight" in dflash.lacking:
        dflash.model.set_input_embeddings(nn.Embedding.from_pretrained(embedding))
    if "lm_head.weight" in dflash.lacking:
        linear = nn.Linear(head.shape[1], head.shape[0], bias=False)
        linear.weight = nn.Parameter(head, requires_grad=False)
        dflash.model.set_output_embeddings(linear)


def guessed(dflash: Dflash, features: torch.Tensor, root: int, parts: int = 2) -> torch.Tensor:
    """The logits of a block behind a text whose features are read in parts."""
    network = DflashNetwork(dflash, 64, "reference")
    slots = network.model.pool.take(len(features))
    for part in np.array_split(np.arange(len(features)), parts):
        network.read(Reading(slots[: part[0]], [0] * len(part), part + 1, features[part], slots[part]))
    return network.guess([Block(slots, root, len(features), features[-1:])], dflash.config.guesses)


@pytest.mark.parametrize("name", ["whole", "reduced", "sliding"])
def test_logits_are_those_of_speculators(name: str) -> None:
    """The checkpoints and the results were written by speculators itself (`write_reference.py`)."""
    place = REFERENCE / name
    expected = load_file(place / "expected.safetensors")
    dflash = load_dflash(place, TargetShape(3, 16, 60, "LlamaForCausalLM"), torch.float32)
    lend(dflash, expected["embed_tokens.weight"], expected["lm_head.weight"])
    with torch.no_grad():
        features = dflash.mapping(expected["states"])
    logits = guessed(dflash, features, int(expected["root"]))
    first = 0 if dflash.config.from_root else 1
    theirs = expected["logits"][first:]
    assert len(theirs) == dflash.config.guesses == (4 if name == "reduced" else 3)
    if dflash.target_ids is not None:
        assert bool((logits.isfinite().sum(-1) == 24).all())
        logits = logits[:, dflash.target_ids]
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-5)


def test_hidden_states_are_those_of_transformers(tmp_path: Path) -> None:
    """Its assistant model with the cache that `DFlashTokenCandidateGenerator` uses: a prompt, then a further token."""
    directory = as_assistant(write_dflash(tmp_path))
    theirs = MuseGlimmerAssistantModel.from_pretrained(directory, dtype=torch.float32).eval()
    target = tiny_model("Llama")
    dflash = load_dflash(directory, SHAPE, torch.float32)
    assert dflash.lacking == {"embed_tokens.weight", "lm_head.weight"}
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    lend(dflash, embedding, head)
    states = torch.randn(1, 12, 2 * 64)
    with torch.no_grad():
        features = dflash.mapping(states[0])
    cache = DFlashCache(config=theirs.config)
    cache.activate_past_recording()
    block = dflash.config.block_size
    for start, end in ((0, 11), (11, 12)):
        root = 5 + end
        noise = torch.tensor([[root, *[dflash.config.mask_token] * (block - 1)]])
        cache.set_previous_accepted_tokens(end - start)
        if start:
            cache.crop(-block)
        with torch.no_grad():
            out = theirs(
                noise_embeds=embedding[noise],
                context_hidden_states=states[:, start:end],
                position_ids=torch.arange(start, end + block).unsqueeze(0),
                past_key_values=cache,
            )
            expected = out.last_hidden_state[0, 1:] @ head.T
        fresh = load_dflash(directory, SHAPE, torch.float32)
        lend(fresh, embedding, head)
        torch.testing.assert_close(guessed(fresh, features[:end], root), expected, rtol=1e-4, atol=1e-4)


def test_all_layouts_are_the_same_network(tmp_path: Path) -> None:
    ours = load_dflash(write_dflash(tmp_path / "a"), SHAPE, torch.float32)
    original = load_dflash(as_original(write_dflash(tmp_path / "b")), SHAPE, torch.float32)
    assistant = load_dflash(as_assistant(write_dflash(tmp_path / "c")), SHAPE, torch.float32)
    for theirs in (original, assistant):
        assert theirs.config.aux_layers == ours.config.aux_layers == (1, 2)
        assert theirs.config.block_size == ours.config.block_size == 6
        assert theirs.config.layers.head_dim == 16
        for part, its in ((ours.model, theirs.model), (ours.mapping, theirs.mapping)):
            for name, tensor in part.state_dict().items():
                if tensor.device.type != "meta":
                    assert torch.equal(tensor, its.state_dict()[name])


def test_the_target_lends_what_is_missing(tmp_path: Path) -> None:
    target = packed(tiny_model("Llama"), 100)
    drafter = dflash_drafter(DflashOptions(str(write_dflash(tmp_path))), target)
    tokens = torch.tensor([[5, 9]])
    embedding = drafter.model.model.get_input_embeddings()
    assert torch.equal(embedding(tokens), target.model.get_input_embeddings()(tokens))
    assert drafter.model.vocab_size == VOCABULARY


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speculators_model_type": "dflash2"}, "speculators_model_type must be 'dflash', got 'dflash2'"),
        ({"speculators_model_type": "dspark"}, "speculators_model_type must be 'dflash', got 'dspark'"),
        ({"speculators_model_type": None, "architectures": ["Other"]}, "architectures must hold DFlashDraftModel"),
        ({"selector_rank": 8}, "selector_rank is not supported"),
        ({"block_size": 1}, "block_size must be at least 2, got 1"),
        ({"block_size": 999}, "block_size must be at most 128, got 999"),
        ({"block_size": "long"}, "block_size must be a positive whole number, got 'long'"),
        ({"mask_token_id": 300}, "mask_token_id must be a token's id below 300, got 300"),
        ({"mask_token_id": None}, "mask_token_id must be a token's id below 300, got None"),
        ({"sample_from_anchor": 3}, "sample_from_anchor must be true or false, got 3"),
        ({"draft_vocab_size": 150}, "tensor d2t is missing"),
        ({"target_hidden_size": 128}, "target_hidden_size must be that of the layers, 64, got 128"),
        ({"aux_hidden_state_layer_ids": [0, 4]}, "but the target has 3 layers"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids must be a list of layers' indices"),
        ({"aux_hidden_state_layer_ids": [0, 1, 2]}, "tensor fc.weight has shape"),
        ({"transformer_layer_config": 3}, "transformer_layer_config must be an object"),
        ({"speculators_config": {"algorithm": "eagle3"}}, "speculators_config.algorithm must be 'dflash'"),
        (
            {"speculators_config": {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}},
            "speculators_config.verifier.architectures is Qwen3ForCausalLM, but the target is a LlamaForCausalLM",
        ),
    ],
)
def test_bad_fields(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_dflash(change_config(write_dflash(tmp_path), **fields), SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 301}, "vocabulary size 301 does not match the target's 300"),
        ({"layer_types": ["full_attention"]}, "must be equal to the number of `layer_types`"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types must be a list of full_attention and"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window must be a positive whole number, got None"),
        ({"num_experts": 8}, "transformer_layer_config.num_experts is not supported"),
    ],
)
def test_bad_fields_of_the_layers(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    directory = write_dflash(tmp_path)
    layers = config_of(directory)["transformer_layer_config"]
    with pytest.raises(ValueError, match=words):
        load_dflash(change_config(directory, transformer_layer_config={**layers, **fields}), SHAPE, torch.float32)


def test_blocks_that_are_causal_in_a_window_are_refused(tmp_path: Path) -> None:
    place = write_dflash(tmp_path)
    layers = config_of(place)["transformer_layer_config"]
    sliding = {**layers, "layer_types": ["sliding_attention"] * 2, "sliding_window": 8}
    directory = change_config(place, transformer_layer_config=sliding, sliding_window_non_causal=False)
    with pytest.raises(ValueError, match="sliding_window_non_causal must be true"):
        load_dflash(directory, SHAPE, torch.float32)


def test_bad_fields_of_the_original_layout(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dflash_config\.heads is not supported"):
        load_dflash(as_original(write_dflash(tmp_path), dflash_config={"heads": 3}), SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"fc__weight": None}, "tensor fc.weight is missing"),
        ({"norm__weight": torch.ones(3)}, "tensor norm.weight has shape"),
        ({"hidden_norm__weight": None}, "tensor output_norm.weight is missing"),
        ({"gate__weight": torch.ones(3)}, "tensor gate.weight is not supported"),
        ({"lm_head__weight": None}, "tensor lm_head.weight is missing, and the target's own is for another vocab"),
    ],
)
def test_bad_tensors(tmp_path: Path, tensors: dict[str, torch.Tensor | None], words: str) -> None:
    directory = change_tensors(write_dflash(tmp_path, dflash_config(draft_vocab_size=150)), **tensors)
    with pytest.raises(ValueError, match=words):
        load_dflash(directory, SHAPE, torch.float32)
