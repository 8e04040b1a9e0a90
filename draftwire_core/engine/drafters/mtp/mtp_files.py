"""Reads the multi-token prediction layer that comes in a target's checkpoint, by transformers' own conversions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, modeling_layers
from transformers.modeling_layers import MtpModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.quantised.formats import read_format
from draftwire_core.engine.checkpoint.quantised.stored_format import StoredFormat
from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles
from draftwire_core.engine.model.attention.packed_attention import current_pass
from draftwire_core.engine.model.linear.float8_weight import Float8Weight
from draftwire_core.engine.model.reading.quantisation import find_quantisation, quantisation_of

_NUMBERS = ("num_mtp_layers", "mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Fields for the number of layers, by model family."""

_SCALES = ("_scale", "_scale_inv")
"""Ends of the names of tensors of scales."""
_patching = Lock()


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
    whole = AutoConfig.from_pretrained(checkpoint.directory)
    find_quantisation(checkpoint, whole)
    quantisation, config = quantisation_of(whole), whole.get_text_config(decoder=True)
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
        with _dequantised(checkpoint, quantisation) if quantisation else nullcontext():
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


@contextmanager
def _dequantised(checkpoint: Checkpoint, quantisation: object) -> Iterator[None]:
    """Gives transformers, which would take the numbers of such a layer for its values, the values of 8-bit floats
    within the context. Raises ModelLoadError for a format that is not supported."""
    files = TensorFiles.open(checkpoint)
    form = read_format(quantisation, files)
    with _patching:
        given = modeling_layers.safe_open
        modeling_layers.safe_open = lambda path, **options: _PlainFile(given(path, **options), files, form)
        try:
            yield
        finally:
            modeling_layers.safe_open = given


class _PlainFile:
    """A file of a quantised checkpoint as if its weights of 8-bit floats were plain."""

    def __init__(self, file: Any, files: TensorFiles, form: StoredFormat):
        self._file, self._files, self._form = file, files, form

    def keys(self) -> list[str]:
        """The names of the tensors, without those of scales."""
        names: list[str] = self._file.keys()
        return [name for name in names if not name.endswith(_SCALES)]

    def get_slice(self, name: str) -> Any:
        """A tensor. Raises ModelLoadError for other quantised weights than 8-bit floats."""
        if self._files.dtype(name) in FLOATS:
            return self._file.get_slice(name)
        layer, _, kind = name.rpartition(".")
        shape = self._files.shape(name) or ()
        weight = self._form.weight(layer, *shape) if kind == "weight" and len(shape) == 2 else None
        if not isinstance(weight, FloatWeight):
            raise self._files.refusal(name, "is quantised: such prediction layers are read in 8-bit floats only")
        return Float8Weight(weight).values()

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)


def _complete(config: PretrainedConfig, count: int) -> None:
    """Fills in what transformers needs to know of the layers, and some families' configurations do not say."""
    config.num_mtp_layers = count
    if getattr(config, "layer_types", None) and not getattr(config, "mtp_layer_types", None):
        config.mtp_layer_types = ["full_attention"] * count
    kinds = getattr(config, "mlp_layer_types", None)
    if kinds and not getattr(config, "mtp_mlp_layer_types", None):
        config.mtp_mlp_layer_types = kinds[-1:] * count
