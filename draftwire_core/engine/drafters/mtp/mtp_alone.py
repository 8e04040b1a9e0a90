"""A multi-token prediction layer without its target: what the two share is read from the target's files."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles
from draftwire_core.engine.drafters.mtp.mtp_files import load_mtp
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape

_NORMS = ("model.norm.weight", "language_model.norm.weight")


class MtpAlone(NamedTuple):
    """The network of a layer, complete, and the map to its features."""

    model: PreTrainedModel
    mapping: FeatureMap
    """The target's last norm."""
    target_layers: int
    architecture: str
    """Class of the target."""


def load_alone(checkpoint: Checkpoint, dtype: torch.dtype) -> MtpAlone:
    """Reads the first multi-token prediction layer of a target's checkpoint, with embedding, last norm and output head.
    Raises ModelLoadError."""
    if checkpoint.gguf is not None:
        raise ModelLoadError(f"model {checkpoint.name}: multi-token prediction layers of GGUF files are not read")
    try:
        whole = AutoConfig.from_pretrained(checkpoint.directory)
        config = whole.get_text_config(decoder=True)
        with torch.device("meta"):
            target = AutoModelForCausalLM.from_config(config)
    except (ValueError, OSError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {' '.join(str(error).split())}") from error
    rows, width = target.get_input_embeddings().weight.shape
    files = TensorFiles.open(checkpoint)

    def read(endings: tuple[str, ...], shape: tuple[int, ...], otherwise: str) -> torch.Tensor:
        found = (name for name in sorted(files.unread) if name.endswith(endings))
        return files.tensor(next(found, otherwise), [shape], FLOATS).to(dtype)

    embedding = read(("embed_tokens.weight",), (rows, width), "model.embed_tokens.weight")
    mtp = load_mtp(checkpoint, type(target), nn.Embedding.from_pretrained(embedding), dtype)
    head = nn.Linear(width, rows, bias=False, device="meta")
    # Its own embedding is the head of a target that ties the two. A multimodal one may say so outside its text part.
    tied = any(getattr(each, "tie_word_embeddings", False) for each in (whole, config))
    weight = embedding if tied else read(("lm_head.weight",), (rows, width), "lm_head.weight")
    head.weight = nn.Parameter(weight, requires_grad=False)
    mtp.model.set_output_embeddings(head)
    norm = type(target.get_decoder().norm)(width, eps=config.rms_norm_eps)
    norm.weight = nn.Parameter(read(_NORMS, (width,), _NORMS[0]).float(), requires_grad=False)
    shape = FeatureShape(1, width, width, norm_features=True, unmapped=True, epsilon=config.rms_norm_eps)
    mapping = FeatureMap(shape)
    assert mapping.output_norm is not None
    # Some norms add one to their weights: what they multiply ones by is the weight of the plain norm.
    ones = torch.ones(width)
    scale = (1 + config.rms_norm_eps) ** 0.5
    mapping.output_norm.weight = nn.Parameter((norm(ones) * scale).to(dtype), requires_grad=False)
    return MtpAlone(mtp.model, mapping, config.num_hidden_layers, type(target).__name__)
