"""The metadata of one architecture in a GGUF file, within the bounds that its tensors set."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufArray
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor

FACTORS = "rope_freqs.weight"
"""The tensor of the factors that divide the frequencies of the rotary embedding, as since Llama 3.1."""

_LAYER = re.compile(r"blk\.(\d+)\.")
_DRAFTING = "nextn_predict_layers"


class GgufKeys:
    """The values of the keys that begin with the name of an architecture; keys are named without it."""

    def __init__(self, header: GgufHeader, name: str, factors: Mapping[str, GgufTensor]):
        """factors: the tensors of the rotary embedding that the file has.

        Raises ModelLoadError for a number of layers that the file does not have.
        """
        self.header = header
        self.name = name
        self.factors = factors
        self._metadata = header.metadata
        self._largest = max((max(entry.shape) for entry in header.tensors.values()), default=0)
        self._by_layer: dict[int, set[str]] = {}
        for tensor in header.tensors:
            found = _LAYER.match(tensor)
            if found:
                self._by_layer.setdefault(int(found[1]), set()).add(tensor[found.end() :])
        self.blocks = self._metadata.size(self.full("block_count"))
        """Layers in the file, those that draft included."""
        if self.blocks > len(self._by_layer):
            raise self.refusal(
                "block_count", f"is {self.blocks}, but the file has tensors of {len(self._by_layer)} layers"
            )
        drafting = self._metadata.integer(self.full(_DRAFTING), 0)
        if drafting >= self.blocks:
            raise self.refusal(_DRAFTING, f"is {drafting}, but the file has {self.blocks} layers")
        self.layers = self.blocks - drafting
        """Layers of the model."""

    def full(self, key: str) -> str:
        """The whole key."""
        return f"{self.name}.{key}"

    def refusal(self, key: str, reason: object) -> ModelLoadError:
        """The error that names the file, the key and the reason."""
        return self._metadata.refusal(self.full(key), reason)

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self._metadata

    def size(self, key: str, default: int | None = None) -> int:
        """A size of a tensor: from 1 to the largest one in the file; or a list of the same one for each layer, as files
        of Granite 4 without recurrent layers have. Raises ModelLoadError."""
        if not isinstance(self._metadata.get(self.full(key)), GgufArray):
            return self._bounded(key, self._metadata.size(self.full(key), default))
        found = set(self.sizes(key))
        if len(found) > 1 or 0 in found:
            raise self.refusal(key, f"is {sorted(found)[:8]} in different layers: not supported")
        return found.pop()

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 to the largest size of a tensor in the file. Raises ModelLoadError."""
        return self._bounded(key, self._metadata.integer(self.full(key), default))

    def length(self, key: str, default: int | None = None) -> int:
        """A number of tokens, at least 0, which no tensor bounds. Raises ModelLoadError."""
        return self._metadata.integer(self.full(key), default)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Raises ModelLoadError."""
        return self._metadata.number(self.full(key), default)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0. Raises ModelLoadError."""
        number = self.number(key, default)
        if number <= 0:
            raise self.refusal(key, f"is {number}; must be positive")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """A truth value. Raises ModelLoadError."""
        return self._metadata.flag(self.full(key), default)

    def text(self, key: str) -> str:
        """A string. Raises ModelLoadError."""
        return self._metadata.text(self.full(key))

    def sizes(self, key: str) -> list[int]:
        """A size for each layer, at least 0, from a list or one number for all. Raises ModelLoadError."""
        if not isinstance(self._metadata.get(self.full(key)), GgufArray):
            return [self.count(key)] * self.layers
        found = []
        for number in self.numbers(key, self.layers):
            if isinstance(number, float) or number < 0:
                raise self.refusal(key, f"has {number}; must be whole numbers of at least 0")
            found.append(self._bounded(key, int(number)))
        return found

    def numbers(self, key: str, least: int) -> list[int | float]:
        """The first `least` numbers of a list. Raises ModelLoadError for a shorter one."""
        array = self._metadata.array(self.full(key), strings=False)
        if array.count < least:
            raise self.refusal(key, f"has {array.count} numbers; must have {least}")
        return self.header.numbers(self.full(key))[:least]

    def sliding(self, key: str, period: int, *, last_is_full: bool = True) -> list[bool]:
        """Whether each layer has a sliding window: a list, or of each so many layers all but one.

        period: the number of layers if the file gives none; 1 if none has a window then. last_is_full: whether the last
        one of them attends to all tokens, rather than the first one.
        """
        if isinstance(self._metadata.get(self.full(key)), GgufArray):
            return [bool(number) for number in self.numbers(key, self.layers)]
        period = self.length(key, period)
        if period == 0:  # as in llama.cpp: all of them
            return [True] * self.layers
        full = period - 1 if last_is_full else 0
        return [layer % period != full for layer in range(self.layers)]

    def has_part(self, name: str) -> bool:
        """Whether the first layer that has a part's weight, or any layer of a part without one, has a tensor of this
        name, such as `attn_q.bias`."""
        weight = f"{name.rpartition('.')[0]}.weight"
        if name.startswith("attn_q.") and not self._with(weight):  # together with keys and values
            return self.has_part(name.replace("attn_q.", "attn_qkv."))
        return any(name in parts for parts in (self._with(weight) or self._with(name))[:1])

    def layers_with(self, name: str) -> list[bool]:
        """Whether each layer has a tensor of this name."""
        return [name in self._by_layer.get(layer, ()) for layer in range(self.layers)]

    def _with(self, name: str) -> list[Collection[str]]:
        return [self._by_layer[layer] for layer in sorted(self._by_layer) if name in self._by_layer[layer]]

    def _bounded(self, key: str, size: int) -> int:
        if size > self._largest:
            raise self.refusal(key, f"is {size}, but no tensor in the file has a size above {self._largest}")
        return size
