"""Numbers in a checkpoint's config.json by which lists are made, compared with its files before anything is made.

A library makes a list of an entry a layer while it reads a configuration, and then layer after layer. So a number that
was mistyped, or is meant to do harm, would fill the memory before any weight is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from draftwire_core.engine.checkpoint.checkpoint import CONFIG, Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.plain_files import check_pointer, json_object

_COUNTS = re.compile(r"(^|_)n?(layers?|blocks?|depths?|labels)$")
"""Ends of the names of fields that say how many of something a model has, of which each has a tensor."""
_POSITIVE = ("vocab_size", "hidden_size", "head_dim", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Fields of a model of text that are never 0."""
_TYPES = ("dtype", "torch_dtype")
_ALWAYS = 256
"""A number that is never too large: lists of so many entries do no harm, and some fields count what has no tensors."""


def check_counts(checkpoint: Checkpoint, tensors: int) -> None:
    """Raises ModelLoadError for a configuration with more layers or the like than the checkpoint has tensors, with a
    size below 1, or with a type that is none.

    tensors: number of tensors in the files.
    """
    most = max(_ALWAYS, tensors)
    fields = config_fields(checkpoint)
    text = fields.get("text_config")
    for place in (fields, text if isinstance(text, dict) else {}):
        for name in _POSITIVE:
            value = place.get(name)
            if type(value) is int and value < 1:
                raise ModelLoadError(f"model {checkpoint.name}: {CONFIG}: {name} must be at least 1, got {value}")
        for name in _TYPES:
            value = place.get(name)
            if isinstance(value, str) and not _is_type(value):
                raise ModelLoadError(
                    f"model {checkpoint.name}: {CONFIG}: {name} must be a type's full name, such as bfloat16, float16 "
                    f"or float32, got {value!r}"
                )
    for name, value in _numbers(fields, ""):
        if _COUNTS.search(name) and value > most:
            raise ModelLoadError(
                f"model {checkpoint.name}: {CONFIG}: {name} is {value}, but the files have {tensors} tensors in all"
            )


def _is_type(name: str) -> bool:
    return name == "auto" or isinstance(getattr(torch, name.removeprefix("torch."), None), torch.dtype)


def config_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields of a checkpoint's config.json. Raises ModelLoadError."""
    path = checkpoint.directory / CONFIG
    try:
        check_pointer(path)
        return json_object(path)
    except OSError as error:
        raise ModelLoadError(f"model {checkpoint.name}: {CONFIG} cannot be read: {error}") from error
    except ValueError as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error


def _numbers(fields: dict[str, Any], place: str) -> Iterator[tuple[str, float]]:
    """All numbers of a configuration with their names, those of inner objects included."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{place}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{place}{name}", value
