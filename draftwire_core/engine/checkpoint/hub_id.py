"""Ids of the Hugging Face hub: a repository, or one file of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SCHEME = "hf://"
"""Beginning of a source that is always an id."""
GGUF = ".gguf"
"""Suffix of a model in a single file, with its tokenizer."""
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
"""Pattern of a repository's owner or name, and of a folder or file in it."""
_FOLDERS = frozenset(
    [
        "build",
        "checkpoint",
        "checkpoints",
        "data",
        "drafts",
        "model",
        "models",
        "out",
        "output",
        "outputs",
        "runs",
        "tmp",
        "weights",
    ]
)
"""First folders of paths, which are never taken for a repository's owner: a mistyped path must not fetch a stranger's
repository."""


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository of the hub, or a GGUF file in it."""

    repository: str
    """owner/name, or a name alone."""
    file: str | None = None
    """Path of a GGUF file in the repository; None for the repository's checkpoint."""

    def __str__(self) -> str:
        return self.repository if self.file is None else f"{self.repository}/{self.file}"

    @classmethod
    def of(cls, source: str) -> HubId | None:
        """Returns the id that a source is if no such path exists; None for a source that can only be a path.

        owner/name is an id, and so is owner/name/FILE.gguf, unless the owner is a folder here or has a customary name
        of one. With the scheme, a name alone is an id as well, and so is a file in folders of a repository.
        """
        explicit = source.startswith(SCHEME)
        parts = source.removeprefix(SCHEME).split("/")
        if not all(map(_PART.fullmatch, parts)):
            return None
        found = cls("/".join(parts[:2]), "/".join(parts[2:]) or None)
        if found.file is not None and not found.file.endswith(GGUF):
            return None
        if explicit:
            return found
        path_like = parts[0].lower() in _FOLDERS or Path(parts[0]).exists()
        return found if len(parts) in (2, 3) and not path_like else None
