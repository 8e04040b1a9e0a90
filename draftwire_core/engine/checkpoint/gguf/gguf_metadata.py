"""The metadata of a GGUF file, read by key and type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError

_LONGEST_REASON = 700
"""Characters kept of a reason, which may be another library's error message."""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of a GGUF file, decoded only on request, since vocabularies are long."""

    strings: bool
    """Whether the elements are strings; numbers otherwise."""
    count: int
    """Number of elements."""
    start: int
    """Offset of the first element in bytes from the start of the file."""
    code: str
    """Format of a number as in the module `struct`; empty for strings."""


Value = bool | int | float | str | GgufArray


class GgufMetadata(Mapping[str, Value]):
    """The values by key. Each getter raises ModelLoadError, which names the file and the key, for another type."""

    def __init__(self, path: str, values: Mapping[str, Value]):
        """path: the file's, for error messages."""
        self._path = path
        self._values = values

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def refusal(self, key: str, reason: object) -> ModelLoadError:
        """The error that names the file, the key and the reason."""
        text = " ".join(str(reason).split())[:_LONGEST_REASON]
        return ModelLoadError(f"GGUF file {self._path}: metadata {key}: {text}")

    def tensor_refusal(self, name: str, reason: str) -> ModelLoadError:
        """The error that names the file, the tensor and the reason."""
        return ModelLoadError(f"GGUF file {self._path}: tensor {name}: {reason}")

    def text(self, key: str) -> str:
        """A string. Raises ModelLoadError if it is missing or is not UTF-8."""
        value = self._present(key)
        if not isinstance(value, str):
            raise self.refusal(key, "is not a string")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.refusal(key, "is not UTF-8") from error
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; the default if it is missing."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "is not a truth value")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0. Raises ModelLoadError if it is missing and has no default."""
        value = self._present(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(key, "is not a whole number")
        if value < 0:
            raise self.refusal(key, f"is {value}; must not be negative")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1. Raises ModelLoadError if it is missing and has no default."""
        value = self.integer(key, default)
        if value == 0:
            raise self.refusal(key, "is 0; must be positive")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Raises ModelLoadError if it is missing and has no default."""
        value = self._present(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(key, "is not a number")
        if not math.isfinite(value):
            raise self.refusal(key, f"is {value}; must be finite")
        return float(value)

    def array(self, key: str, *, strings: bool) -> GgufArray:
        """An array of strings, or of numbers. Raises ModelLoadError if it is missing."""
        value = self._present(key)
        if not isinstance(value, GgufArray) or value.strings != strings:
            raise self.refusal(key, f"is not a list of {'strings' if strings else 'numbers'}")
        return value

    def _present(self, key: str) -> Value:
        if key not in self._values:
            raise self.refusal(key, "is missing")
        return self._values[key]
