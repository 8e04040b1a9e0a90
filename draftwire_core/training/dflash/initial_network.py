"""The network of a DFlash drafter before its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash, dflash_model, feature_map
from draftwire_core.engine.drafters.features.draft_network import EMBEDDING, HEAD, DraftNetwork
from draftwire_core.engine.model.model_facts import architecture_of
from draftwire_core.engine.model.shallow_model import decoder_layers
from draftwire_core.training.frozen_target.network_shape import layers_like, shallow_layers
from draftwire_core.training.frozen_target.network_trainer import with_targets
from draftwire_core.training.frozen_target.target_states import reading

_READ = 5
"""Layers of the target that are read, as in the paper (arXiv 2602.06036)."""

_RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class InitialOptions:
    """The shape of a network."""

    block: int
    """Rows of a block: the last committed token, and those that it guesses."""
    layers: int
    mask_token: int
    """The token whose embedding stands for one to be guessed."""


def initial_network(
    base: PreTrainedModel, options: InitialOptions, target_ids: torch.Tensor | None, labels: torch.Tensor, seed: int
) -> Dflash:
    """Returns a network with the target's last layers, norm, embedding and output head, as far as their shapes agree,
    whose masks look at their block's root.

    target_ids: as `DraftNetwork.target_ids`. labels: some texts, int64 [windows, length], negative for padding. Raises
    ValueError for options that do not fit the target.
    """
    config = _configuration(base, options, target_ids)
    torch.manual_seed(seed)
    model, mapping = dflash_model(config).float(), feature_map(config).float()
    width = config.layers.hidden_size
    assert mapping.fc is not None
    lacking = frozenset({EMBEDDING, HEAD})
    network = with_targets(DraftNetwork(config, model, mapping, config.aux_layers, target_ids, lacking), base)
    with torch.no_grad():
        mapping.fc.weight.mul_(0.1)
        mapping.fc.weight[:, -width:] += torch.eye(width, device=base.device)
        _shape_after(network, base, labels.to(base.device))
    return network


def _shape_after(network: Dflash, base: PreTrainedModel, labels: torch.Tensor) -> None:
    """Sets the weights of layers and last norm; see `initial_network`."""
    theirs, own = base.get_decoder(), network.model.get_decoder()
    with reading(base, network.aux_layers) as read:
        base(labels.clamp(min=0), use_cache=False)
    states = torch.cat([read[layer] for layer in network.aux_layers], dim=-1)[labels >= 0]
    features = network.mapping(states.float())
    embed = network.model.get_input_embeddings()
    roots = embed(labels[labels >= 0]).float()
    mask = embed(torch.tensor(network.config.mask_token, device=labels.device)).float()
    if hasattr(theirs, "norm"):
        _take_over(own.norm, theirs.norm)
    for layer, its in zip(own.layers, decoder_layers(base)[-len(own.layers) :], strict=False):
        parts = dict(its.named_modules())
        for name, part in layer.named_modules():
            if name in parts:
                _take_over(part, parts[name])
        attention = layer.self_attn
        if "self_attn.k_norm" not in parts:  # then scores are to be as large as they would be without norms
            for norm, linear, rows in (
                (attention.k_norm, attention.k_proj, features),
                (attention.q_norm, attention.q_proj, layer.input_layernorm(roots)),
            ):
                norm.weight.fill_(float(linear(rows).square().mean().sqrt()))
    look_at_roots(own.layers[0], features, roots, mask)


def _take_over(part: nn.Module, source: nn.Module) -> None:
    """Sets a linear layer's weight, or a norm's, after another of the same shape; does nothing for other modules."""
    weight, its = getattr(part, "weight", None), getattr(source, "weight", None)
    if weight is None or its is None or weight.shape != its.shape or getattr(source, "bias", None) is not None:
        return
    if isinstance(part, nn.Linear):
        weight.copy_(its)
    else:
        # Norms differ in what their weights mean: 1 is added to those of some.
        signs = torch.ones_like(its)
        signs[::2] = -1
        weight.copy_(source(signs) * signs)


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


def _configuration(base: PreTrainedModel, options: InitialOptions, target_ids: torch.Tensor | None) -> DflashConfig:
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
        target_architectures=(architecture_of(base),),
    )


def look_at_roots(layer: Any, features: torch.Tensor, roots: torch.Tensor, mask: torch.Tensor) -> None:
    """Makes masks attend to the root of their block, by queries and keys of half of the layer's key heads, at least
    one; to be called without gradients.

    All masks have the same embedding; attention alone shows them which token they follow, which with copied weights is
    one of hundreds of keys. The heads begin with a direction that separates roots from masks and features, fitted by
    least squares: keys of roots have it, and queries of masks ask for it.

    layer: of Qwen3. features: [n, hidden], those of some texts. roots: [m, hidden], embeddings of some tokens. mask:
    [hidden], the mask's embedding.
    """
    attention = layer.self_attn
    seen, asking = layer.input_layernorm(roots), layer.input_layernorm(mask)
    inputs = torch.cat([seen, features, asking.expand(len(seen), -1)])
    wanted = torch.cat([torch.ones(len(seen)), -torch.ones(len(features) + len(seen))]).to(inputs)
    normal = inputs.T @ inputs
    ridge = _RIDGE * normal.diagonal().mean() * torch.eye(len(normal), device=inputs.device)
    apart = torch.linalg.solve(normal + ridge, inputs.T @ wanted)
    dim, groups = attention.head_dim, attention.num_key_value_groups
    # Only pairs that turn slowly, so that the distance does not matter.
    direction = torch.zeros(2, dim // 2, device=inputs.device)
    direction[:, dim // 4 :] = 1
    direction = direction.flatten()
    heads = max(1, attention.k_proj.out_features // dim // 2)
    for linear, count, read in (
        (attention.k_proj, heads, apart),
        (attention.q_proj, heads * groups, asking),
    ):
        linear.weight[: count * dim] = torch.outer(direction.repeat(count), read)
