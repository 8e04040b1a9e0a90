"""A model in a GGUF file, as llama.cpp's tools write them: its tensors under transformers' names, its configuration
and its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import FACTORS
from draftwire_core.engine.checkpoint.gguf.architectures.table import architecture_of
from draftwire_core.engine.checkpoint.gguf.gguf_config import read_config
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufEntry, GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_parameters import GgufParameters
from draftwire_core.engine.checkpoint.gguf.gguf_parts import open_parts
from draftwire_core.engine.checkpoint.gguf.gguf_rotary import LONG, SHORT
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufParameter, GgufTensor
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_tokenizer import read_tokenizer

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


class GgufFile:
    """A model in a GGUF file of version 2 or 3, or in the files that llama-gguf-split made of one."""

    def __init__(self, path: Path, header: GgufHeader, data: Sequence[torch.Tensor]):
        """Opened by `open`. header, data: as `open_parts` returns them."""
        self.path = path
        """The path as given."""
        self._header = header
        self._data = data
        metadata = header.metadata
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
        """Opens a file, checks all of its header, and maps it into memory; of a model in several files, with any of
        them all (`open_parts`).

        Reads no tensor. A program that shortens the file while it is in use ends the process, as with any mapped file.
        Raises ModelLoadError, which names the file and the tensor or the key of the metadata, for a file that is
        damaged, incomplete, or not supported.
        """
        path = Path(path)
        return cls(path, *open_parts(path))

    def config(self) -> PretrainedConfig:
        """A copy of the configuration of transformers, such as a LlamaConfig."""
        return copy.deepcopy(self._config)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template, if the file has one.

        Raises ModelLoadError if the file has none, or one that would give other ids than the model was trained with.
        """
        return read_tokenizer(self._header)

    def _tensor(self, entry: GgufEntry) -> GgufTensor:
        blocks = self._data[entry.part][entry.start : entry.start + entry.size].view(*entry.shape[:-1], entry.row_bytes)
        return GgufTensor(entry.type, entry.shape, blocks)
