"""Facts of a target that the choice of a drafter needs: read from its configuration, its card and the names of its
tensors, without its weights."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwire_core.engine.checkpoint.checkpoint import CONFIG, Checkpoint
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufArray, GgufMetadata
from draftwire_core.engine.checkpoint.gguf.gguf_name import GgufName
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.suggesting.model_names import card_names, config_names, gguf_names
from draftwire_core.suggesting.own_heads import OwnHead, own_heads
from draftwire_core.suggesting.weight_bytes import bytes_per_token, safetensors_tensors

_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_USED = ("num_experts_per_tok", "experts_per_token", "moe_top_k", "num_experts_per_token")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """A target as its files describe it. A number is 0 if they do not say it."""

    source: str
    """The target as it was given."""
    names: tuple[str, ...] = ()
    """Names of the target and of the models that it was made from."""
    architecture: str = ""
    """`model_type` of a configuration, `general.architecture` of a GGUF file."""
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0
    weight_bytes: int = 0
    """Bytes of all weights."""
    bytes_per_token: int = 0
    """Bytes of the weights that a pass of one token reads; of a mixture of experts, those of the experts in use."""
    mtp_layers: int = 0
    """Multi-token prediction layers in the checkpoint."""
    heads: tuple[OwnHead, ...] = field(default=())
    """Heads in the checkpoint's directory."""
    gguf: bool = False
    """Whether the target is a GGUF file."""


def facts_of(source: str | Checkpoint) -> TargetFacts:
    """Reads what is known of a target: a directory, a GGUF file, or a hub id, which is downloaded if it is not here.

    Raises ModelLoadError if there is no such model, or if its configuration cannot be read.
    """
    checkpoint = Checkpoint.find(source)
    if checkpoint.gguf is not None:
        return _gguf_facts(checkpoint, checkpoint.gguf)
    try:
        fields = json_object(checkpoint.directory / CONFIG)
        tensors = list(safetensors_tensors(checkpoint.directory))
        heads = own_heads(checkpoint.directory)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error
    total = sum(size for _, size in tensors) or sum(
        each.stat().st_size for each in checkpoint.directory.iterdir() if each.suffix in _WEIGHTS
    )
    names = [checkpoint.name, *config_names(fields), *card_names(checkpoint.directory)]
    return config_facts(checkpoint.name, fields, names, tensors, total, heads)


def config_facts(
    source: str,
    fields: Mapping[str, Any],
    names: Sequence[str] = (),
    tensors: Sequence[tuple[str, int]] = (),
    total: int = 0,
    heads: Sequence[OwnHead] = (),
) -> TargetFacts:
    """Returns the facts of a configuration of transformers.

    fields: of config.json. names: of the model and its base models. tensors: names and bytes. total: bytes of all
    weights, if the tensors are not known. heads: in its directory.
    """
    inner = fields.get("text_config")
    text = {**fields, **inner} if isinstance(inner, dict) else dict(fields)
    share = _share(_number(text, _USED), _number(text, _EXPERTS))
    mtp = _number(text, _MTP)
    if tensors and mtp and not _has_mtp(tensors, _number(text, _LAYERS)):
        mtp = 0  # some conversions keep the number and leave the layers out
    return TargetFacts(
        source,
        tuple(dict.fromkeys(names)),
        str(fields.get("model_type") or text.get("model_type") or ""),
        _number(text, _LAYERS),
        _number(text, _HIDDEN),
        _number(text, ("vocab_size",)),
        total or sum(size for _, size in tensors),
        bytes_per_token(tensors, share) if tensors else total,
        mtp,
        tuple(heads),
    )


def _has_mtp(tensors: Sequence[tuple[str, int]], layers: int) -> bool:
    """Whether the tensors of multi-token prediction layers are there: `mtp.`, or layers after the last one."""
    return any(name.startswith("mtp.") or f"layers.{layers}." in name for name, _ in tensors)


def _gguf_facts(checkpoint: Checkpoint, path: Path) -> TargetFacts:
    """The facts of a GGUF file, whose header alone is read; of a model in several files, those of its first one, with
    the bytes of all."""
    parts = [path.parent / Path(each).name for each in GgufName.of(path.name).all_parts()]
    tensors: list[tuple[str, int]] = []
    metadata: GgufMetadata | None = None
    vocabulary = 0
    for part in parts:
        try:
            with part.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = GgufHeader(str(part), data)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"GGUF file {part}: {error}") from error
        tensors += [(each.name, each.size) for each in header.tensors.values()]
        metadata = header.metadata if metadata is None else metadata
        if embedding := header.tensors.get("token_embd.weight"):
            vocabulary = embedding.shape[0]
    assert metadata is not None, "a model has at least one file"
    name = metadata.text("general.architecture")

    def number(key: str) -> int:
        value = metadata.get(f"{name}.{key}", 0)
        return value if isinstance(value, int) else 0

    tokens = metadata.get("tokenizer.ggml.tokens")
    known = tokens.count if isinstance(tokens, GgufArray) else 0
    return TargetFacts(
        checkpoint.name,
        tuple(dict.fromkeys([checkpoint.name, *gguf_names(metadata), *card_names(checkpoint.directory)])),
        name,
        number("block_count") - number("nextn_predict_layers"),
        number("embedding_length"),
        known or vocabulary,
        sum(size for _, size in tensors),
        bytes_per_token(tensors, _share(number("expert_used_count"), number("expert_count"))),
        number("nextn_predict_layers"),
        gguf=True,
    )


def _number(fields: Mapping[str, Any], keys: Sequence[str]) -> int:
    """The first of some fields that is a positive whole number; 0 if none is."""
    found = (fields.get(key) for key in keys)
    return next((each for each in found if type(each) is int and each > 0), 0)


def _share(used: int, experts: int) -> float:
    return min(1.0, used / experts) if used and experts else 1.0
