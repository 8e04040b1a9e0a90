"""Finds checkpoints by name: local directories, and repositories of the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.json"
GGUF = ".gguf"
"""Suffix of a model in a single file, with its tokenizer."""
_HUB_SCHEME = "hf://"
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
"""Pattern of a repository's owner or name."""
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


class ModelLoadError(Exception):
    """Raised if a model cannot be loaded or served; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a model."""

    name: str
    """The path as given, or the hub's owner/name."""
    directory: Path
    """The directory of the files."""
    from_hub: bool
    """Whether the files came from the hub, now or earlier."""
    gguf: Path | None = None
    """The file of the model and its tokenizer, if it is a GGUF file."""

    @classmethod
    def find(cls, source: str | Checkpoint, *, hub: bool = True, model: bool = True) -> Checkpoint:
        """Finds a checkpoint by the path of a directory or of a GGUF file, or by a hub id.

        A hub id is owner/name or hf://owner/name; its files are fetched. An existing path takes precedence. A source
        that looks like a path is never a hub id: one that begins with /, . or ~, has no slash or several, or whose
        first folder exists here or has a common name such as models/.

        hub: whether hub ids are allowed. model: whether weights and a configuration are needed, not just a tokenizer.
        Raises ModelLoadError, which names the source and the reason.
        """
        if isinstance(source, Checkpoint):
            return source
        found = _locate(source, hub=hub, model=model)
        if isinstance(found, Path):
            if found.is_file():
                return cls(source, found.parent, from_hub=False, gguf=found)
            return cls(source, found, from_hub=False)
        from speculative_engine.checkpoint.hub import HubError, fetch  # slow to import

        try:
            return cls(found, fetch(found, weights=model), from_hub=True)
        except HubError as error:
            raise ModelLoadError(f"{_what(source, model)}: {error}") from error


def check_source(source: str, *, model: bool = True) -> None:
    """Raises ModelLoadError for a source that is neither a directory nor a hub id, without contacting the hub.

    model: whether the source is of a model, not of a tokenizer alone.
    """
    _locate(source, hub=True, model=model)


def _locate(source: str, *, hub: bool, model: bool) -> Path | str:
    """The source's directory or GGUF file, or the repository that it names. Raises ModelLoadError."""
    what = _what(source, model)
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            if model and not (path / CONFIG).is_file():
                raise ModelLoadError(f"{what}: not a checkpoint: the directory has no {CONFIG}")
            return path
        if path.is_file() and path.suffix == GGUF:
            return path
        if path.is_file():
            raise ModelLoadError(f"{what}: is a file; expected the directory of a checkpoint, or a {GGUF} file")
    except (OSError, RuntimeError) as error:  # the name is too long, or ~ names an unknown user
        raise ModelLoadError(f"{what}: no such directory: {error}") from error
    repository = repository_of(source)
    if repository is None or not hub:
        raise ModelLoadError(f"{what}: no such directory{_hint(source, repository, hub)}")
    return repository


def _what(source: str, model: bool) -> str:
    return f"model {source}" if model else f"tokenizer of {source}"


def repository_of(source: str) -> str | None:
    """The hub repository that a source names, if it is not a directory; None for a source that can only be a path."""
    explicit = source.startswith(_HUB_SCHEME)
    repository = source.removeprefix(_HUB_SCHEME)
    parts = repository.split("/")
    if not all(map(_PART.fullmatch, parts)) or len(parts) > 2:
        return None
    if explicit:
        return repository
    owner = parts[0]
    return repository if len(parts) == 2 and owner.lower() not in _FOLDERS and not Path(owner).exists() else None


def _hint(source: str, repository: str | None, hub: bool) -> str:
    """The end of the error message, with what the source may have been meant to be."""
    if repository is not None:
        return ", and models of the hub are not fetched for callers without --allow-hub-models"
    here = "" if source.startswith(("/", "~", _HUB_SCHEME)) or not hub else f" in {Path.cwd()}"
    if not hub or repository_of(f"{_HUB_SCHEME}{source}") is None:
        return here
    return f"{here}; to use a model of the Hugging Face hub, write {_HUB_SCHEME}{source}"
