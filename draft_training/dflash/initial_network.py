"""The network of a DFlash drafter before its training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from draft_training.frozen_target.network_shape import layers_like, shallow_layers
from speculative_engine.drafters.dflash.dflash_config import DflashConfig
from speculative_engine.drafters.dflash.dflash_files import Dflash, dflash_model, feature_map
from speculative_engine.drafters.features.draft_network import EMBEDDING, HEAD, DraftNetwork

_READ = 5
"""Layers of the target that are read, as in the paper (arXiv 2602.06036)."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """What a network is to be."""

    block: int
    """Rows of a block: the last committed token, and those that it guesses."""
    layers: int
    mask_token: int
    """The token whose embedding stands for one to be guessed."""


def initial_network(
    base: PreTrainedModel, options: NetworkOptions, target_ids: torch.Tensor | None, seed: int
) -> Dflash:
    """Returns a network with random layers behind the target's embedding, before its last norm and output head.

    target_ids: as `DraftNetwork.target_ids`. Raises ValueError for options that do not fit the target.
    """
    config = _configuration(base, options, target_ids)
    torch.manual_seed(seed)
    model, mapping = dflash_model(config), feature_map(config)
    width = config.layers.hidden_size
    assert mapping.fc is not None
    with torch.no_grad():
        mapping.fc.weight.mul_(0.1)
        mapping.fc.weight[:, -width:] += torch.eye(width)
    model.float()
    mapping.float()
    lacking = frozenset({EMBEDDING, HEAD})
    return DraftNetwork(config, model, mapping, config.aux_layers, target_ids, lacking)


def mask_token_of(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Returns the token that stands for one to be guessed, chosen as speculators does: the tokenizer's mask, an id
    that stands for no token, its padding, its end of text.

    vocab_size: rows of the target's embedding. Raises ValueError if there is none.
    """
    unused = len(tokenizer) if len(tokenizer) < vocab_size else None
    for found in (tokenizer.mask_token_id, unused, tokenizer.pad_token_id, tokenizer.eos_token_id):
        if found is not None and 0 <= int(found) < vocab_size:
            return int(found)
    raise ValueError("the tokenizer has no token that could stand for one to be guessed: name one by --mask-token")


def layers_read(layers: int) -> tuple[int, ...]:
    """Returns the layers whose inputs are read in a target with this many: evenly spaced ones, from the third to the
    one next to the last."""
    first, last = 2, layers - 2
    if last - first < 2:
        return shallow_layers(layers)
    count = min(_READ, last - first + 1)
    return tuple(first + round(index * (last - first) / (count - 1)) for index in range(count))


def _configuration(base: PreTrainedModel, options: NetworkOptions, target_ids: torch.Tensor | None) -> DflashConfig:
    fields = layers_like(base)
    vocab_size = fields["vocab_size"]
    if not 0 <= options.mask_token < vocab_size:
        raise ValueError(f"the mask token's id must be below {vocab_size}, got {options.mask_token}")
    layers = Qwen3Config(**fields, num_hidden_layers=options.layers, layer_types=["full_attention"] * options.layers)
    return DflashConfig(
        layers=layers,
        draft_vocab_size=vocab_size if target_ids is None else len(target_ids),
        target_hidden_size=fields["hidden_size"],
        aux_layers=layers_read(int(base.config.get_text_config(decoder=True).num_hidden_layers)),
        block_size=options.block,
        mask_token=options.mask_token,
        target_architectures=(type(base).__name__,),
    )
