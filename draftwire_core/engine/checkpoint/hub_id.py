"""Ids of the Hugging Face hub: a repository, or a GGUF model of it, by its file or its quantisation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from draftwire_core.engine.checkpoint.gguf.gguf_name import SUFFIX

SCHEME = "hf://"
"""Beginning of a source that is always an id."""
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
"""Pattern of a repository's owner or name, and of a folder or file in it."""
_TAG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
"""Pattern of a tag, which says how the tensors of a GGUF file are quantised."""
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
    """A repository of the hub, or a GGUF model in it."""

    repository: str
    """owner/name, or a name alone."""
    file: str | None = None
    """Path of a GGUF file in the repository; None if the id names none."""
    tag: str | None = None
    """How the tensors of the GGUF model are quantised, such as Q4_K_M, in capitals or not; None if it is not said."""

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.repository}/{self.file}"
        return self.repository if self.tag is None else f"{self.repository}:{self.tag}"

    @classmethod
    def of(cls, source: str) -> HubId | None:
        """Returns the id that a source is if no such path exists; None for a source that can only be a path.

        owner/name is an id, and so are owner/name:TAG and owner/name/FILE.gguf, unless the owner is a folder here or
        has a customary name of one. With the scheme, a name alone is an id as well, and so is a file in folders of a
        repository.
        """
        explicit = source.startswith(SCHEME)
        plain, colon, tag = source.removeprefix(SCHEME).partition(":")
        parts = plain.split("/")
        if not all(map(_PART.fullmatch, parts)) or (colon and not _TAG.fullmatch(tag)):
            return None
        found = cls("/".join(parts[:2]), "/".join(parts[2:]) or None, tag or None)
        if found.file is not None and (colon or not found.file.endswith(SUFFIX)):
            return None
        if explicit:
            return found
        path_like = parts[0].lower() in _FOLDERS or Path(parts[0]).exists()
        return found if len(parts) in (2, 3) and not path_like else None
