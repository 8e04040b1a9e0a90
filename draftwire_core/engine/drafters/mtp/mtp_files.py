"""Reads the multi-token prediction layer that comes in a target's checkpoint, by transformers' own conversions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import MtpModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.model.attention.packed_attention import current_pass

_NUMBERS = ("num_mtp_layers", "mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Fields for the number of layers, by model family."""


class MtpInput(nn.Module):
    """The layer's input for a token: its embedding, and the target's last hidden state for the token before it.

    Takes the place of the embedding, so that the decoder layer behind it is one like the target's. The hidden states
    are the features of the pass.
    """

    def __init__(self, embedding: nn.Module, layer: nn.Module, *, states_first: bool):
        """layer: a transformers.modeling_layers.MtpLayer. states_first: whether the projection reads the hidden state
        before the embedding."""
        super().__init__()
        self._embedding = embedding
        self.enorm, self.hnorm, self.eh_proj = layer.enorm, layer.hnorm, layer.eh_proj
        self._states_first = states_first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: ids [1, rows] -> [1, rows, hidden]"""
        features = current_pass().batch.features
        assert features is not None, "the drafter sets them"
        parts = [self.enorm(self._embedding(tokens)), self.hnorm(features.unsqueeze(0))]
        out: torch.Tensor = self.eh_proj(torch.cat(parts[::-1] if self._states_first else parts, dim=-1))
        return out


class Mtp(NamedTuple):
    """The network around a multi-token prediction layer."""

    model: PreTrainedModel
    """A decoder like the target's with this one layer. Its output head is still empty, on the device "meta"."""
    layers: int
    """Number of layers in the checkpoint, of which the first is used."""


def load_mtp(checkpoint: Checkpoint, kind: type[PreTrainedModel], embedding: nn.Module, dtype: torch.dtype) -> Mtp:
    """Reads the first multi-token prediction layer of a target's checkpoint.

    kind: class of the target. embedding: the target's, used without being a part of the network. Raises ModelLoadError.
    """
    if checkpoint.gguf is not None:
        raise ModelLoadError(f"model {checkpoint.name}: multi-token prediction layers of GGUF files are not read")
    config = AutoConfig.from_pretrained(checkpoint.directory).get_text_config(decoder=True)
    count = next((int(getattr(config, name)) for name in _NUMBERS if getattr(config, name, None)), 0)
    if not count:
        raise ModelLoadError(
            f"model {checkpoint.name}: has no multi-token prediction layers: its config.json has none of "
            f"{', '.join(_NUMBERS)}"
        )
    _complete(config, count)
    if getattr(config, "chain_hidden_post_norm", None) is not None:
        raise ModelLoadError(f"model {checkpoint.name}: config.json: chain_hidden_post_norm is not supported")
    config.dtype = dtype
    config.name_or_path = str(checkpoint.directory)
    try:
        with torch.device("meta"):
            shape = kind(config)
        # transformers names the layers of the published sizes only.
        shape._keys_to_ignore_on_load_unexpected = [
            rf"^(?:model\.)?layers\.{config.num_hidden_layers + index}\." for index in range(count)
        ] + [r"^mtp\."]
        found = MtpModel.from_pretrained(shape, device_map={"": "cpu"})
        first = found.layers[0]
        config = found.config
        config.num_hidden_layers = 1
        for name in ("layer_types", "mlp_layer_types"):
            if getattr(config, name, None):
                setattr(config, name, getattr(config, name)[:1])
        with torch.device("meta"):
            model = kind(config)
    except (RuntimeError, ValueError, OSError, KeyError, AttributeError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ModelLoadError(f"model {checkpoint.name}: its multi-token prediction layer: {reason}") from error
    decoder = model.get_decoder()
    decoder.layers[0] = first.mtp_block
    decoder.norm = first.post_norm
    # Its frequencies are no weights, and cannot have been computed on the device "meta".
    decoder.rotary_emb = type(decoder.rotary_emb)(config)
    states_first = bool(getattr(config, "mtp_hidden_states_first", False))
    model.set_input_embeddings(MtpInput(embedding, first, states_first=states_first))
    return Mtp(model.requires_grad_(False).eval(), count)


def _complete(config: PretrainedConfig, count: int) -> None:
    """Fills in what transformers needs to know of the layers, and some families' configurations do not say."""
    config.num_mtp_layers = count
    if getattr(config, "layer_types", None) and not getattr(config, "mtp_layer_types", None):
        config.mtp_layer_types = ["full_attention"] * count
    kinds = getattr(config, "mlp_layer_types", None)
    if kinds and not getattr(config, "mtp_mlp_layer_types", None):
        config.mtp_mlp_layer_types = kinds[-1:] * count
