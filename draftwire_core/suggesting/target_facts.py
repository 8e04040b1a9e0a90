"""Facts of a target that the choice of a drafter needs: read from its configuration, its card and the names of its
tensors, without its weights."""

from __future__ import annotations

import math
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
from draftwire_core.engine.checkpoint.weight_files import INDEX, SINGLE, weight_map
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.suggesting.kv_values import HIDDEN, LAYERS, config_kv_values, gguf_kv_values, number_of
from draftwire_core.suggesting.model_names import card_names, config_names, gguf_names
from draftwire_core.suggesting.own_heads import OwnHead, own_heads
from draftwire_core.suggesting.weight_bytes import bytes_per_token, safetensors_tensors

_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "experts_per_token", "moe_top_k", "num_experts_per_token", "top_k_experts", "moe_k")
_WEIGHTS = (".safetensors", ".bin")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_QUANTISATION, _MODELOPT = "quantization_config", "hf_quant_config.json"
_FORMATS = {"fp8": 8.0, "modelopt": 8.0, "nvfp4": 4.5, "mxfp4": 4.25, "bitnet": 2.0}
"""Bits of a weight in formats that do not say them in their fields."""


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
    pass_bytes: int = 0
    """Bytes of the weights that a pass of very many tokens reads: of a mixture of experts, those of all experts."""
    expert_share: float = 1.0
    """Share of the experts that a token uses; 1 for models without experts."""
    value_bits: float = 16.0
    """Bits of a weight, its scales included: in the files, or after them if its type becomes float16 at load."""
    kv_values: int = 0
    """Elements of the keys and values of a token in all layers."""
    context_length: int = 0
    """Most tokens of a sequence."""


def facts_of(source: str | Checkpoint) -> TargetFacts:
    """Reads what is known of a target: a directory, a GGUF file, or a hub id, which is downloaded if it is not here.

    Raises ModelLoadError if there is no such model, or if its configuration cannot be read.
    """
    checkpoint = Checkpoint.find(source)
    if checkpoint.gguf is not None:
        return _gguf_facts(checkpoint, checkpoint.gguf)
    try:
        fields = json_object(checkpoint.directory / CONFIG)
        fields |= _quantisation(checkpoint.directory, fields)
        tensors = list(safetensors_tensors(_safetensors(checkpoint), widened=_becomes_float16(fields)))
        heads = own_heads(checkpoint.directory)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error
    total = sum(size for _, size in tensors) or sum(
        each.stat().st_size for each in checkpoint.directory.iterdir() if each.suffix in _WEIGHTS
    )
    names = [checkpoint.name, *config_names(fields), *card_names(checkpoint.directory)]
    return config_facts(checkpoint.name, fields, names, tensors, total, heads)


def _safetensors(checkpoint: Checkpoint) -> list[Path]:
    """The files that the weights are read from. Some directories have a copy in another format next to them. Raises
    ModelLoadError for an index that is damaged."""
    directory = checkpoint.directory
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if (directory / INDEX).is_file():
        named = (directory / name for name in sorted(set(weight_map(checkpoint).values())))
        return [file for file in named if file.exists()]
    return sorted(directory.glob("*.safetensors"))


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
    share = _share(number_of(text, _USED), number_of(text, _EXPERTS))
    mtp = number_of(text, _MTP)
    if tensors and mtp and not _has_mtp(tensors, number_of(text, LAYERS)):
        mtp = 0  # some conversions keep the number and leave the layers out
    return TargetFacts(
        source,
        tuple(dict.fromkeys(names)),
        str(fields.get("model_type") or text.get("model_type") or ""),
        number_of(text, LAYERS),
        number_of(text, HIDDEN),
        number_of(text, ("vocab_size",)),
        total or sum(size for _, size in tensors),
        bytes_per_token(tensors, share) if tensors else total,
        mtp,
        tuple(heads),
        pass_bytes=bytes_per_token(tensors, 1.0) if tensors else total,
        expert_share=share,
        value_bits=_bits(text),
        kv_values=config_kv_values(text),
        context_length=number_of(text, _CONTEXT),
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
    vocabulary = values = kv_values = 0
    for part in parts:
        try:
            with part.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = GgufHeader(str(part), data)
                kv_values = gguf_kv_values(header) if metadata is None else kv_values
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"GGUF file {part}: {error}") from error
        tensors += [(each.name, each.size) for each in header.tensors.values()]
        values += sum(math.prod(each.shape) for each in header.tensors.values())
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
    total, share = sum(size for _, size in tensors), _share(number("expert_used_count"), number("expert_count"))
    return TargetFacts(
        checkpoint.name,
        tuple(dict.fromkeys([checkpoint.name, *gguf_names(metadata), *card_names(checkpoint.directory)])),
        name,
        number("block_count") - number("nextn_predict_layers"),
        number("embedding_length"),
        known or vocabulary,
        total,
        bytes_per_token(tensors, share),
        number("nextn_predict_layers"),
        gguf=True,
        pass_bytes=bytes_per_token(tensors, 1.0),
        expert_share=share,
        value_bits=8 * total / max(1, values),
        kv_values=kv_values,
        context_length=number("context_length"),
    )


def _quantisation(directory: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a checkpoint of ModelOpt that has it in a file of its own, as in a configuration. Raises
    ValueError and OSError."""
    if isinstance(fields.get(_QUANTISATION), dict) or not (directory / _MODELOPT).is_file():
        return {}
    found = json_object(directory / _MODELOPT).get("quantization")
    return {_QUANTISATION: {"quant_method": "modelopt", **found}} if isinstance(found, dict) else {}


def _becomes_float16(fields: Mapping[str, Any]) -> bool:
    """Whether no product reads numbers of 4 bits of the format of a configuration: NVFP4, and those of bitsandbytes."""
    quantised = fields.get(_QUANTISATION)
    return isinstance(quantised, dict) and (
        quantised.get("load_in_4bit") is True
        or str(quantised.get("format")).startswith("nvfp4")
        or any(name in str(quantised.get("quant_algo")) for name in ("NVFP4", "MIXED_PRECISION"))
    )


def _bits(fields: Mapping[str, Any]) -> float:
    """The bits of a weight, by the type or the quantised format of a configuration."""
    quantised = fields.get(_QUANTISATION)
    if isinstance(quantised, dict) and not _becomes_float16(fields):
        bits = number_of(quantised, ("bits", "w_bit", "weight_bits")) or _bits_of_groups(quantised.get("config_groups"))
        if bits:
            return bits + 0.5  # with scales
        return _FORMATS.get(str(quantised.get("quant_method")), 8.0)
    return 32.0 if "float32" in str(fields.get("dtype") or fields.get("torch_dtype")) else 16.0


def _bits_of_groups(groups: object) -> int:
    """The bits of the first group of layers of compressed-tensors; 0 if it does not say them."""
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return number_of(weights, ("num_bits",)) if isinstance(weights, dict) else 0


def _share(used: int, experts: int) -> float:
    return min(1.0, used / experts) if used and experts else 1.0
