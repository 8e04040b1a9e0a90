"""Weights of a frozen target in a drafter's network that has none of its own."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.features.draft_network import EMBEDDING, HEAD, ConfigT, DraftNetwork


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
