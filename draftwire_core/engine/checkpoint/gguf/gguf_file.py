"""A model in a GGUF file, as llama.cpp's tools write them: its tensors under transformers' names, its configuration
and its tokenizer."""

from __future__ import annotations

import copy
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import FACTORS
from draftwire_core.engine.checkpoint.gguf.architectures.table import architecture_of
from draftwire_core.engine.checkpoint.gguf.gguf_config import read_config
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufEntry, GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_parameters import GgufParameters
from draftwire_core.engine.checkpoint.gguf.gguf_rotary import LONG, SHORT
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufParameter, GgufTensor
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_tokenizer import read_tokenizer
from draftwire_core.engine.checkpoint.plain_files import check_pointer

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
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
        architecture = architecture_of(metadata)
        embedding = header.tensors.get(_EMBEDDING)
        if embedding is None:
            raise metadata.tensor_refusal(_EMBEDDING, "is missing")
        vocabulary = embedding.shape[0]
        for key in (f"{architecture.name}.vocab_size", "tokenizer.ggml.tokens"):
            if key in metadata:
                tokens = metadata.array(key, strings=True).count if key.endswith("tokens") else metadata.size(key)
                if tokens != vocabulary:
                    raise metadata.refusal(key, f"has {tokens} tokens, but {_EMBEDDING} {vocabulary} rows")
        factors = {
            name: self._tensor(header.tensors[name]) for name in (FACTORS, LONG, SHORT) if name in header.tensors
        }
        for name, tensor in factors.items():
            if len(tensor.shape) != 1 or tensor.plain is None:
                raise metadata.tensor_refusal(name, "is no vector of plain numbers")
        self._config = read_config(
            header, architecture, vocabulary=vocabulary, tied=_HEAD not in header.tensors, factors=factors
        )
        parameters = GgufParameters(header, architecture, self._tensor)
        self.tensors: Mapping[str, GgufParameter] = MappingProxyType(parameters.find(self._config, set(factors)))
        """The parameters by their names in transformers, such as `model.layers.0.self_attn.q_proj.weight`. There is no
        `lm_head.weight` if the embedding takes its place."""

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
        """A copy of the configuration of transformers, such as a LlamaConfig."""
        return copy.deepcopy(self._config)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template, if the file has one.

        Raises ModelLoadError if the file has none, or one that would give other ids than the model was trained with.
        """
        return read_tokenizer(self._header)

    def _tensor(self, entry: GgufEntry) -> GgufTensor:
        blocks = self._data[entry.start : entry.start + entry.size].view(*entry.shape[:-1], entry.row_bytes)
        return GgufTensor(entry.type, entry.shape, blocks)
