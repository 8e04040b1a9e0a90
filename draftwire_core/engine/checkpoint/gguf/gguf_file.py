"""A model in a GGUF file, as llama.cpp's tools write them: its tensors under transformers' names, its configuration
and its tokenizer."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_architecture import HEAD, PERMUTED, ROPE_FACTORS, GgufDimensions
from draftwire_core.engine.checkpoint.gguf.gguf_config import read_config
from draftwire_core.engine.checkpoint.gguf.gguf_header import PLAIN_TYPES, GgufEntry, GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_tokenizer import read_tokenizer
from draftwire_core.engine.checkpoint.plain_files import check_pointer

_EMBEDDING = "token_embd.weight"
_PARTS = "split.count"
# Python 3.12 has a name for it.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""Flag of a mapping for which the system sets no memory aside, as none is ever written."""


class GgufFile:
    """A model in a GGUF file of version 2 or 3."""

    def __init__(self, path: Path, header: GgufHeader, data: torch.Tensor):
        """Opened by `open`. data: the bytes of the file: uint8, [size of the file]."""
        self.path = path
        """The path as given."""
        self._header = header
        self._data = data
        metadata = header.metadata
        if metadata.integer(_PARTS, 1) > 1:
            raise metadata.refusal(
                _PARTS, f"is one of {metadata[_PARTS]} files; join them with llama-gguf-split --merge"
            )
        self._dimensions = dimensions = GgufDimensions.read(metadata, header.tensors)
        embedding = self._entry(_EMBEDDING)
        self._vocabulary = embedding.shape[0]
        for key in (f"{dimensions.architecture.name}.vocab_size", "tokenizer.ggml.tokens"):
            if key in metadata:
                tokens = metadata.array(key, strings=True).count if key.endswith("tokens") else metadata.size(key)
                if tokens != self._vocabulary:
                    raise metadata.refusal(key, f"has {tokens} tokens, but {_EMBEDDING} {self._vocabulary} rows")
        self._rope_factors = None
        found: dict[str, GgufTensor] = {}
        known = set()
        if ROPE_FACTORS in header.tensors:
            self._rope_factors = self._tensor(self._checked(ROPE_FACTORS, (dimensions.head // 2,)))
            known.add(ROPE_FACTORS)
        for parameter, name, shape in dimensions.parameters(self._vocabulary):
            if parameter == HEAD and name not in header.tensors:
                continue
            entry = self._checked(name, shape)
            known.add(name)
            permuted = dimensions.architecture.permuted and any(part in parameter for part in PERMUTED)
            heads = entry.shape[0] // dimensions.head if permuted else 0
            plus_one = dimensions.architecture.norms_plus_one and parameter.endswith("norm.weight")
            found[parameter] = self._tensor(entry, heads, added=float(plus_one))
        # A tensor that nobody uses would mean that the file is of a model of another kind.
        unknown = next((name for name in header.tensors if name not in known), None)
        if unknown is not None:
            kind = dimensions.architecture.name
            raise metadata.tensor_refusal(unknown, f"is not known for architecture {kind}")
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(found)
        """The tensors by the names of the parameters in transformers, such as
        `model.layers.0.self_attn.q_proj.weight`. There is no `lm_head.weight` if the embedding takes its place."""

    @classmethod
    def open(cls, path: Path | str) -> GgufFile:
        """Opens a file, checks all of its header, and maps it into memory.

        Reads no tensor. A program that shortens the file while it is in use ends the process, as with any mapped file.
        Raises ModelLoadError, which names the file and the tensor or the key of the metadata, for a file that is
        damaged, incomplete, or not supported.
        """
        path = Path(path)
        try:
            if not path.is_file():  # opening a pipe would wait for a writer
                raise ModelLoadError(f"GGUF file {path}: there is no such file")
            check_pointer(path)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:  # which cannot be mapped
                    raise ModelLoadError(f"GGUF file {path}: is empty")
                # A private mapping that can be written, since torch warns of others. Nobody writes to it.
                data = mmap.mmap(
                    file.fileno(),
                    size,
                    flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"GGUF file {path}: cannot be read: {error}") from error
        return cls(path, GgufHeader(str(path), data), torch.frombuffer(data, dtype=torch.uint8))

    def config(self) -> PretrainedConfig:
        """The configuration of transformers, such as a LlamaConfig. Raises ModelLoadError."""
        return read_config(
            self._header,
            self._dimensions,
            vocabulary=self._vocabulary,
            tied=HEAD not in self.tensors,
            rope_factors=self._rope_factors,
        )

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template, if the file has one.

        Raises ModelLoadError if the file has none, or one that would give other ids than the model was trained with.
        """
        return read_tokenizer(self._header)

    def _entry(self, name: str) -> GgufEntry:
        entry = self._header.tensors.get(name)
        if entry is None:
            raise self._header.metadata.tensor_refusal(name, "is missing")
        return entry

    def _checked(self, name: str, shape: tuple[int, ...]) -> GgufEntry:
        entry = self._entry(name)
        if entry.shape != shape:
            why = f"has shape {list(entry.shape)}, but the metadata say {list(shape)}"
            raise self._header.metadata.tensor_refusal(name, why)
        if len(shape) == 1 and entry.type not in PLAIN_TYPES:
            raise self._header.metadata.tensor_refusal(name, f"has type {entry.type}; vectors are not quantised")
        return entry

    def _tensor(self, entry: GgufEntry, permuted_heads: int = 0, *, added: float = 0.0) -> GgufTensor:
        blocks = self._data[entry.start : entry.start + entry.size].view(*entry.shape[:-1], entry.row_bytes)
        return GgufTensor(entry.type, entry.shape, blocks, permuted_heads, added)
