"""Fetches the files of a model from the Hugging Face hub into the hub client's own cache.

The request for a repository's files is not retried; only downloads that have begun are.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import disable_progress_bars

from draftwire_core.engine.checkpoint.hub_id import GGUF, SCHEME
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned

log = logging.getLogger(__name__)

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base class of the errors of the HTTP library that the installed hub client uses."""
_TEXTS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
"""Suffixes of the files other than weights: configuration, tokenizer, code."""
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
"""End of the name of one of several files of a model, as llama-gguf-split names them."""
_MOST_NAMED = 20
"""Most files that an error message names."""
_CONFIG = "config.json"
_MARKS = (_CONFIG, "tokenizer_config.json", "tokenizer.json")
"""Files by which a cached copy is found, in order."""


class HubError(Exception):
    """Raised if a repository cannot be fetched from the hub; the message says why."""


def fetch(repository: str, *, weights: bool = True) -> Path:
    """Returns the directory, in the hub's cache, of a repository's main branch; downloads missing files first.

    weights: whether to fetch a whole model, weights included, or only a tokenizer. With HF_HUB_OFFLINE, or if the hub
    cannot be reached, only the cache is used. Takes as long as the download. Raises HubError.
    """
    return _fetch(
        repository,
        repository,
        cached=lambda: _cached(repository, weights=weights),
        lacking=lambda: _lacking_in_cache(repository, weights=weights),
        choose=lambda names: _checkpoint(repository, names, weights=weights),
    ).parent


def fetch_file(repository: str, file: str) -> Path:
    """Returns the path, in the hub's cache, of a GGUF file of a repository's main branch; downloads it first if it is
    missing there.

    file: its path in the repository, with which the returned path ends. HF_HUB_OFFLINE, an unreachable hub and the time
    it takes are as for `fetch`. Raises HubError, which names the repository's GGUF files if it has no such file.
    """
    return _fetch(
        repository,
        f"{repository}/{file}",
        cached=lambda: _cached_file(repository, file),
        lacking=lambda: None,
        choose=lambda names: _single(repository, names, file),
    )


def _fetch(
    repository: str,
    wanted: str,
    cached: Callable[[], Path | None],
    lacking: Callable[[], str | None],
    choose: Callable[[list[str]], list[str]],
) -> Path:
    """Returns the path, in the hub's cache, of the first of some files; downloads those that are missing.

    wanted: what messages call them. cached: looks for the first of them, if all are in the cache. lacking: says what an
    incomplete copy in the cache lacks. choose: selects them from the names of the repository's files. Raises HubError.
    """

    def absence() -> str:
        part = lacking()
        return f"has no {wanted}" if part is None else f"has an incomplete copy of {wanted}, which lacks {part}"

    _log_through_one_handler()
    if constants.HF_HUB_OFFLINE:
        found = cached()
        if found is None:
            raise HubError(f"HF_HUB_OFFLINE is set, and the hub's cache ({constants.HF_HUB_CACHE}) {absence()}")
        return found
    log.info("hub download started", extra={"repository": wanted, "hub": constants.ENDPOINT})
    if not sys.stderr.isatty():  # progress bars would fill a log
        disable_progress_bars()
    try:
        files = choose(_names(repository))
    except _Unavailable as error:
        found = cached()
        if found is None:
            incomplete = f"; the hub's cache ({constants.HF_HUB_CACHE}) {absence()}" if lacking() else ""
            raise HubError(f"{error}{incomplete}") from error
        log.warning("cached copy used", extra={"repository": wanted, "reason": str(error)})
        return found
    try:
        # Without a revision, the first download also records in the cache the main branch's commit.
        first = Path(hf_hub_download(repository, files[0]))
        for name in files[1:]:
            stop_if_abandoned()
            hf_hub_download(repository, name, revision=first.parent.name)
    except (_HTTP_ERROR, OSError, EntryNotFoundError) as error:
        raise HubError(f"the download from {constants.ENDPOINT} failed: {_line(error)}") from error
    return first


class _Unavailable(Exception):
    """Raised if the hub does not answer, or answers with an error."""


def _names(repository: str) -> list[str]:
    """Names of a repository's files, sorted, by one request with a timeout. Raises HubError and _Unavailable."""
    try:
        info = HfApi().model_info(repository, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except GatedRepoError as error:
        raise HubError(f"{repository} is gated: HF_TOKEN must belong to an account that was granted access") from error
    except RepositoryNotFoundError as error:
        raise HubError(f"no such repository at {constants.ENDPOINT}, or it is private (HF_TOKEN)") from error
    except HFValidationError as error:
        raise HubError(f"is not a hub id: {_line(error)}") from error
    except HfHubHTTPError as error:
        raise _Unavailable(f"the hub at {constants.ENDPOINT} rejected the request: {_line(error)}") from error
    except (_HTTP_ERROR, OSError) as error:
        raise _Unavailable(f"cannot reach the hub at {constants.ENDPOINT}: {_line(error)}") from error
    return sorted(file.rfilename for file in info.siblings or ())


def _checkpoint(repository: str, names: list[str], *, weights: bool) -> list[str]:
    """The files of a checkpoint, or of its tokenizer alone; one by which a cached copy is found comes first."""
    ggufs = [name for name in names if name.endswith(GGUF)]
    names = [name for name in names if "/" not in name]
    texts = [name for name in names if name.endswith(_TEXTS)]
    if weights and _CONFIG not in texts:
        if ggufs:
            raise HubError(f"the repository has no {_CONFIG}, but GGUF files; name one: {_listed(repository, ggufs)}")
        raise HubError(f"not a checkpoint: the repository has no {_CONFIG}")
    # In the order in which `_cached` looks for them.
    texts.sort(key=lambda name: (_MARKS.index(name) if name in _MARKS else len(_MARKS), name))
    if not texts:
        raise HubError("the repository has no tokenizer")
    return texts + (_weights(names) if weights else [])


def _weights(names: list[str]) -> list[str]:
    """Weight files in the preferred format, safetensors before PyTorch's; files with other names are left out."""
    for ending in (".safetensors", ".bin"):
        own = [name for name in names if name.endswith(ending) and name.startswith(("model", "pytorch_model"))]
        if own:
            return own
    raise HubError("not a checkpoint: the repository has neither safetensors nor PyTorch weights")


def _single(repository: str, names: list[str], file: str) -> list[str]:
    """A GGUF file that holds a whole model, if it is among `names`. Raises HubError."""
    if file not in names:
        others = [name for name in names if name.endswith(GGUF)]
        there = f"; its GGUF files are {_listed(repository, others)}" if others else ", and no other GGUF file"
        raise HubError(f"the repository {repository} has no file {file}{there}")
    part = _PART.search(file)
    if part is not None and int(part[1]) > 1:
        raise HubError(f"{file} is one of {int(part[1])} files; download and join them with llama-gguf-split --merge")
    return [file]


def _listed(repository: str, files: list[str]) -> str:
    """Ids of files for a message, the first ones of many."""
    named = ", ".join(f"{SCHEME}{repository}/{name}" for name in files[:_MOST_NAMED])
    return named + (f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else "")


def _cached(repository: str, *, weights: bool) -> Path | None:
    """A file of the cached copy; None if there is none, or only an incomplete one."""
    for name in _MARKS[:1] if weights else _MARKS:
        found = _cached_file(repository, name)
        if found is not None and (not weights or _lacking_weights(found.parent) is None):
            return found
    return None


def _lacking_in_cache(repository: str, *, weights: bool) -> str | None:
    """Says what an incomplete copy in the cache lacks; None if there is no copy at all."""
    found = next((file for name in _MARKS if (file := _cached_file(repository, name)) is not None), None)
    if found is None:
        begun = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
        return "all of its texts" if begun.is_dir() and any(begun.iterdir()) else None
    if weights and not (found.parent / _CONFIG).is_file():
        return _CONFIG
    return _lacking_weights(found.parent)


def _cached_file(repository: str, name: str) -> Path | None:
    """A file in the cache; None if it is not there."""
    try:
        found = try_to_load_from_cache(repository, name)
    except HFValidationError as error:
        raise HubError(f"is not a hub id: {_line(error)}") from error
    return Path(found) if isinstance(found, str) else None


def _lacking_weights(directory: Path) -> str | None:
    """Says which of the weight files that its index names, or that it needs without an index, a copy lacks; None if it
    has all."""
    names = [each.name for each in directory.iterdir() if each.is_file()]  # False for a link to a missing file
    parts: set[str] = set()
    for index in (name for name in names if name.endswith(".index.json")):
        try:
            parts |= set(json.loads((directory / index).read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return f"a whole {index}"
    missing = sorted(parts - set(names))
    if missing:
        return missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more files"
    return None if any(name.endswith((".safetensors", ".bin")) for name in names) else "its weights"


def _log_through_one_handler() -> None:
    """Removes the hub client's own log handler if the program's log has one, so that lines are not logged twice."""
    if logging.getLogger().handlers:
        logging.getLogger("huggingface_hub").handlers.clear()


def _line(error: BaseException) -> str:
    """The message of an error, as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
