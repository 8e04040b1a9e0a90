"""Names of GGUF files: which model a file is of, which part of it, and how its tensors are quantised."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SUFFIX = ".gguf"
"""End of the names of GGUF files."""
_PART = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})")
"""Name, without its suffix, of one of several files of a model, as llama-gguf-split writes it."""
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of the names of files that belong to a model without being one, by which llama.cpp knows them."""
_PREFERRED = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp takes, in order, if none is asked for."""


@dataclass(frozen=True, slots=True)
class GgufName:
    """The name of a GGUF file, or its path in a repository."""

    text: str
    """The whole name."""
    stem: str
    """The name without the suffix and the number of the part; the same for all parts of a model."""
    part: int = 1
    """Number of the part, from 1."""
    parts: int = 1
    """Number of the model's files."""

    @classmethod
    def of(cls, text: str) -> GgufName:
        """Reads a name that ends with `SUFFIX`."""
        stem = text.removesuffix(SUFFIX)
        found = _PART.fullmatch(stem)
        if found is None or not 1 <= int(found[2]) <= int(found[3]):
            return cls(text, stem)
        return cls(text, found[1], int(found[2]), int(found[3]))

    @property
    def file(self) -> str:
        """The name without folders."""
        return self.text.rpartition("/")[2]

    @property
    def is_model(self) -> bool:
        """Whether the file holds a model, and not a projector for images or another companion of one."""
        return not any(each in self.file for each in _COMPANIONS)

    @property
    def tag(self) -> str | None:
        """The end of the name that says how the model is quantised, in capitals, such as "Q4_K_M"; None without one."""
        found = _TAG.search(self.stem.rpartition("/")[2])
        return None if found is None else found[1].upper()

    def all_parts(self) -> list[str]:
        """The names of all files of the model, in order."""
        if self.parts == 1:
            return [self.text]
        return [f"{self.stem}-{part:05}-of-{self.parts:05}{SUFFIX}" for part in range(1, self.parts + 1)]

    def has_tag(self, tag: str) -> bool:
        """Whether a name, or a folder of it, has a tag, in capitals or not: whole, as "Q4_0" is not in "IQ4_0"."""
        return re.search(rf"(?<![A-Za-z0-9]){re.escape(tag)}[-./]", self.text, re.IGNORECASE) is not None


def gguf_models(names: Iterable[str]) -> list[GgufName]:
    """The models among names of files, sorted: of each the first of its parts that is there. Other files are left out,
    and so are companions of models, such as projectors for images."""
    found: dict[tuple[str, int], GgufName] = {}
    for each in sorted(name for name in names if name.endswith(SUFFIX)):
        name = GgufName.of(each)
        if name.is_model:
            found.setdefault((name.stem, name.parts), name)
    return list(found.values())


def model_with_tag(models: list[GgufName], tag: str | None) -> GgufName | None:
    """The model that llama.cpp takes: the first with the tag; without a tag Q4_K_M, else Q8_0, else the first one.

    None if no model has the tag, or if there are none.
    """
    for wanted in _PREFERRED if tag is None else (tag,):
        found = next((name for name in models if name.has_tag(wanted)), None)
        if found is not None:
            return found
    return next(iter(models), None) if tag is None else None
