"""Fetches the files of a model from the Hugging Face hub into the hub client's own cache.

The request for a repository's files is not retried; only downloads that have begun are.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

log = logging.getLogger(__name__)

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base class of the errors of the HTTP library that the installed hub client uses."""
_TEXTS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
"""Suffixes of the files other than weights: configuration, tokenizer, code."""
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
    _log_through_one_handler()
    if constants.HF_HUB_OFFLINE:
        cached = _cached(repository, weights=weights)
        if cached is None:
            raise HubError(f"HF_HUB_OFFLINE is set, and the hub's cache ({constants.HF_HUB_CACHE}) has no {repository}")
        return cached
    log.info("fetching from the hub", extra={"repository": repository, "hub": constants.ENDPOINT})
    if not sys.stderr.isatty():  # progress bars would fill a log
        disable_progress_bars()
    try:
        files = _files(repository, weights=weights)
    except _Unavailable as error:
        cached = _cached(repository, weights=weights)
        if cached is None:
            raise HubError(str(error)) from error
        log.warning("taking the copy in the hub's cache", extra={"repository": repository, "reason": str(error)})
        return cached
    try:
        # Without a revision, the first download also records in the cache the main branch's commit.
        directory = Path(hf_hub_download(repository, files[0])).parent
        for name in files[1:]:
            hf_hub_download(repository, name, revision=directory.name)
    except (_HTTP_ERROR, OSError, EntryNotFoundError) as error:
        raise HubError(f"the download from {constants.ENDPOINT} failed: {_line(error)}") from error
    return directory


class _Unavailable(Exception):
    """Raised if the hub does not answer, or answers with an error."""


def _files(repository: str, *, weights: bool) -> list[str]:
    """Names of the files to fetch, by one request with a timeout. Raises HubError and _Unavailable."""
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
    names = sorted(file.rfilename for file in info.siblings or () if "/" not in file.rfilename)
    texts = [name for name in names if name.endswith(_TEXTS)]
    if weights and _CONFIG not in texts:
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


def _cached(repository: str, *, weights: bool) -> Path | None:
    """The cached copy; None if there is none, or only an incomplete one."""
    for name in _MARKS:
        try:
            found = try_to_load_from_cache(repository, name)
        except HFValidationError as error:
            raise HubError(f"is not a hub id: {_line(error)}") from error
        if isinstance(found, str) and (not weights or _has_weights(Path(found).parent)):
            return Path(found).parent
    return None


def _has_weights(directory: Path) -> bool:
    """Whether a copy has all weight files that its index names, or, without an index, at least one."""
    names = [each.name for each in directory.iterdir() if each.is_file()]  # False for a link to a missing file
    indices = [name for name in names if name.endswith(".index.json")]
    parts = {part for name in indices for part in json.loads((directory / name).read_text())["weight_map"].values()}
    return parts <= set(names) if parts else any(name.endswith((".safetensors", ".bin")) for name in names)


def _log_through_one_handler() -> None:
    """Removes the hub client's own log handler if the program's log has one, so that lines are not logged twice."""
    if logging.getLogger().handlers:
        logging.getLogger("huggingface_hub").handlers.clear()


def _line(error: BaseException) -> str:
    """The message of an error, as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
