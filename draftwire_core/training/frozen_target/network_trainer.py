"""Trainer of a network that reads the states between a frozen target's layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.features.draft_network import EMBEDDING, HEAD, ConfigT, DraftNetwork
from draftwire_core.training.frozen_target.target_states import reading
from draftwire_core.training.frozen_target.trainer import FrozenTargetTrainer


class NetworkTrainer(FrozenTargetTrainer, Generic[ConfigT]):
    """The common part of trainings of EAGLE-3 and DFlash drafters."""

    network: DraftNetwork[ConfigT]
    _save_network: Callable[..., None]
    """Writes a checkpoint of the network's kind, as `save_dflash` does."""

    def write(self, directory: Path) -> None:
        """Writes the drafter as it is to a directory."""
        network, target = self.network, str(self._base.config.name_or_path)
        weights = network.model, network.mapping
        self._save_network(directory, network.config, weights, network.target_ids, target=target, dtype=self._saved_as)

    def _take(self, network: DraftNetwork[ConfigT], *, train_head: bool) -> None:
        """Takes the network to be trained, complete with the target's weights. train_head: whether its output head is
        trained; its embedding never is."""
        self.network = with_targets(network, self._base)
        self.network.model.requires_grad_(True)
        self.network.mapping.requires_grad_(True)
        self.network.model.get_input_embeddings().requires_grad_(False)
        self.network.model.get_output_embeddings().requires_grad_(train_head)

    def _read(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the tokens [windows, length] of labels, the target's logits for what follows each, [windows, length,
        vocabulary], and the features of its states, [windows, length, hidden]."""
        layers, tokens = self.network.aux_layers, labels.clamp(min=0)
        with torch.no_grad(), reading(self._base, layers) as read:
            target: torch.Tensor = self._base(tokens, use_cache=False).logits
        features = self.network.mapping(torch.cat([read[layer] for layer in layers], dim=-1).float())
        return tokens, target, features

    def _best(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the target's ids of the best tokens. logits: [..., draft vocabulary] -> int64 [...]"""
        best, target_ids = logits.argmax(-1), self.network.target_ids
        return best if target_ids is None else target_ids.to(best.device)[best]

    def _loss(self, logits: torch.Tensor, target: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        """Returns the cross-entropy of the target's distributions over the tokens that can be drafted.

        logits: the network's, [rows, draft vocabulary]. target: the target's, [rows, vocabulary].
        """
        wanted = target if self.network.target_ids is None else target[:, self.network.target_ids]
        return nn.functional.cross_entropy(logits.float(), wanted.float().softmax(-1), reduction=reduction)


def with_targets(network: DraftNetwork[ConfigT], base: PreTrainedModel) -> DraftNetwork[ConfigT]:
    """Returns the network with those weights of the target that it lacks, which are shared and not trained.

    All of it is then on the target's device."""
    embedding, output = base.get_input_embeddings().weight, base.get_output_embeddings().weight
    if network.target_ids is not None:
        output = output[network.target_ids.to(output.device)]
    for name, module, weight in (
        (EMBEDDING, network.model.get_input_embeddings(), embedding),
        (HEAD, network.model.get_output_embeddings(), output),
    ):
        if name in network.lacking:
            module.weight = nn.Parameter(weight.detach(), requires_grad=False)
    network.model.to(base.device)
    network.mapping.to(base.device)
    return network
