"""The Hugging Face hub: fetches the files of a model, which the hub's own cache keeps.

The hub is asked once whether it has a repository. Only the files of a download that has begun are tried again.
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
"""The base of its HTTP library's errors, whichever library this version of the hub's client has."""
_TEXTS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
"""Endings of the files beside the weights: configuration, tokenizer, code."""
_CONFIG = "config.json"
_MARKS = (_CONFIG, "tokenizer_config.json", "tokenizer.json")
"""Files by which a cached copy is found."""


class HubError(Exception):
    """The hub does not give a repository; the message says why."""


def fetch(repository: str, *, weights: bool = True) -> Path:
    """The directory with the files of a repository's main branch, in the hub's cache, fetched where they are not there.

    weights: whether a model is wanted, weights included, or a tokenizer alone. With HF_HUB_OFFLINE only the cache is
    looked at; also where the hub cannot be reached. Takes as long as the download. Raises HubError.
    """
    _log_through_one_handler()
    if constants.HF_HUB_OFFLINE:
        cached = _cached(repository, weights=weights)
        if cached is None:
            raise HubError(f"HF_HUB_OFFLINE is set, and the hub's cache ({constants.HF_HUB_CACHE}) has no {repository}")
        return cached
    log.info("fetching from the hub", extra={"repository": repository, "hub": constants.ENDPOINT})
    if not sys.stderr.isatty():  # a log has no use for progress bars
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
        # Without a revision the first one also says in the cache which commit the main branch is at.
        directory = Path(hf_hub_download(repository, files[0])).parent
        for name in files[1:]:
            hf_hub_download(repository, name, revision=directory.name)
    except (_HTTP_ERROR, OSError, EntryNotFoundError) as error:
        raise HubError(f"the download from {constants.ENDPOINT} failed: {_line(error)}") from error
    return directory


class _Unavailable(Exception):
    """The hub does not answer, or not with what was asked for."""


def _files(repository: str, *, weights: bool) -> list[str]:
    """Names of the files to fetch; one request, with a time-out. Raises HubError and _Unavailable."""
    try:
        info = HfApi().model_info(repository, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except GatedRepoError as error:
        raise HubError(f"{repository} is gated: HF_TOKEN has to be that of somebody who was granted access") from error
    except RepositoryNotFoundError as error:
        raise HubError(f"no such repository at {constants.ENDPOINT}, or it is private (HF_TOKEN)") from error
    except HFValidationError as error:
        raise HubError(f"is no hub id: {_line(error)}") from error
    except HfHubHTTPError as error:
        raise _Unavailable(f"the hub at {constants.ENDPOINT} refuses: {_line(error)}") from error
    except (_HTTP_ERROR, OSError) as error:
        raise _Unavailable(f"cannot reach the hub at {constants.ENDPOINT}: {_line(error)}") from error
    names = sorted(file.rfilename for file in info.siblings or () if "/" not in file.rfilename)
    texts = [name for name in names if name.endswith(_TEXTS)]
    if weights and _CONFIG not in texts:
        raise HubError(f"not a checkpoint: the repository has no {_CONFIG}")
    # The first that is there shows later where the copy is.
    texts.sort(key=lambda name: (_MARKS.index(name) if name in _MARKS else len(_MARKS), name))
    if not texts:
        raise HubError("the repository has no tokenizer")
    return texts + (_weights(names) if weights else [])


def _weights(names: list[str]) -> list[str]:
    """Files with weights in the form that loads best; those in a form of their owner's are left out."""
    for ending in (".safetensors", ".bin"):
        own = [name for name in names if name.endswith(ending) and name.startswith(("model", "pytorch_model"))]
        if own:
            return own
    raise HubError("not a checkpoint: the repository has neither safetensors nor PyTorch weights")


def _cached(repository: str, *, weights: bool) -> Path | None:
    """The copy in the cache; None where there is none, or one that was never finished."""
    for name in _MARKS:
        try:
            found = try_to_load_from_cache(repository, name)
        except HFValidationError as error:
            raise HubError(f"is no hub id: {_line(error)}") from error
        if isinstance(found, str) and (not weights or _has_weights(Path(found).parent)):
            return Path(found).parent
    return None


def _has_weights(directory: Path) -> bool:
    """Return whether a copy has all the files with weights that its index names, or one at least."""
    names = [each.name for each in directory.iterdir() if each.is_file()]  # a link whose file is missing is none
    indices = [name for name in names if name.endswith(".index.json")]
    parts = {part for name in indices for part in json.loads((directory / name).read_text())["weight_map"].values()}
    return parts <= set(names) if parts else any(name.endswith((".safetensors", ".bin")) for name in names)


def _log_through_one_handler() -> None:
    """Have the hub's lines go to the program's log alone where it has one: its library has a handler beside."""
    if logging.getLogger().handlers:
        logging.getLogger("huggingface_hub").handlers.clear()


def _line(error: BaseException) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
