"""Models without weights: configurations and headers of real sizes, in files that take no room."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf

Sizes = Mapping[str, int]
"""Bytes of tensors by name."""


def hollow_checkpoint(place: Path, config: Mapping[str, Any], tensors: Sizes, card: str | None = None) -> Path:
    """Writes a directory with a configuration, the header of a file of safetensors, and a model card."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (place / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    if card is not None:
        (place / "README.md").write_text(card)
    return place


def hollow_gguf(
    path: Path,
    architecture: str,
    numbers: Mapping[str, int | list[int]],
    tensors: Mapping[str, Sequence[int]],
    texts: Mapping[str, str],
) -> Path:
    """Writes a GGUF file whose tensors, of type Q8_0, are a hole.

    numbers: metadata under the architecture's name, a number or one for each layer.
    tensors: shapes, outputs first. texts: further metadata.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, number in numbers.items():
        if isinstance(number, list):
            writer.add_array(f"{architecture}.{key}", number)
        else:
            writer.add_uint32(f"{architecture}.{key}", number)
    for key, text in texts.items():
        writer.add_string(key, text)
    end = 0
    for name, shape in tensors.items():
        elements = 1
        for each in shape:
            elements *= each
        size = elements // 32 * 34
        writer.tensors[-1][name] = gguf.gguf_writer.TensorInfo(
            shape=tuple(shape), dtype=gguf.GGMLQuantizationType.Q8_0, nbytes=size
        )
        end += size + 64
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + end)
    return path
