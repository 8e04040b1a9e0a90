"""Fetches the files of a model from the Hugging Face hub into the hub client's own cache.

The request for a repository's files is not retried; only downloads that have begun are.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import disable_progress_bars, tqdm

from draftwire_core.engine.checkpoint.gguf.gguf_name import SUFFIX, GgufName, gguf_models, model_with_tag
from draftwire_core.engine.checkpoint.hub_id import SCHEME, HubId
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned

log = logging.getLogger(__name__)

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base class of the errors of the HTTP library that the installed hub client uses."""
_DOWNLOAD_ERRORS = (_HTTP_ERROR, OSError, EntryNotFoundError, RuntimeError)
"""Errors of a download, the last one of the hub's storage Xet."""
_TEXTS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
"""Suffixes of the files other than weights: configuration, tokenizer, code."""
_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja")
"""Names of a checkpoint's chat templates besides the usual one, such as that of conversations with tools."""
_FORMATS = (".safetensors", ".bin")
"""Suffixes of weights, in order of preference."""
_WEIGHTS = ("model", "pytorch_model")
"""Beginnings of the names of a checkpoint's weights and their indexes."""
_HEAD_FORMATS = (*_FORMATS, ".pt")
"""Suffixes of weights of heads, in order of preference."""
_CARD = "README.md"
_LOG_SECONDS = 15.0
"""Least time between two events of a download in the log."""
_MOST_NAMED = 20
"""Most files that an error message names."""
_CONFIG = "config.json"
_MARKS = (_CONFIG, "tokenizer_config.json", "tokenizer.json")
"""Files by which a cached copy is found, in order."""
_TOKENIZERS = (*_MARKS[1:], "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
"""Files of which one, at least, belongs to a checkpoint's tokenizer."""


Advance = Callable[[int], None]
"""The type of ``advance(count)``, which is called with the bytes downloaded so far."""


class HubError(Exception):
    """Raised if a repository cannot be fetched from the hub; the message says why."""


def fetch(hub_id: HubId, *, weights: bool = True) -> Path:
    """Returns the path, in the hub's cache, of a file of the model that an id names on its repository's main branch;
    downloads missing files first.

    It is the GGUF file, the first part if the model has several and the id names none, or else a file in the
    checkpoint's directory. An id of a repository alone means its checkpoint or, if it has GGUF files only, the one that
    llama.cpp takes.

    weights: whether a whole model is needed, weights included, or only a tokenizer. With HF_HUB_OFFLINE, or if the hub
    cannot be reached, only the cache is used. Takes as long as the download. Raises HubError, which names the files or
    tags that there are if there is no such one.
    """
    is_checkpoint = hub_id.file is None and hub_id.tag is None
    found = _fetch(
        hub_id.repository,
        str(hub_id),
        cached=lambda: (_cached(hub_id.repository, weights=weights) if is_checkpoint else None) or _cached_gguf(hub_id),
        lacking=lambda: (
            _lacking_parts(hub_id) or (_lacking_in_cache(hub_id.repository, weights=weights) if is_checkpoint else None)
        ),
        choose=lambda names: (
            _checkpoint(names, weights=weights)
            if is_checkpoint and _is_checkpoint(names, weights=weights)
            else _gguf(hub_id, names)
        ),
    )
    if found.suffix == SUFFIX and hub_id.file is None:
        log.info("GGUF file chosen", extra={"repository": hub_id.repository, "file": found.name})
    return found


def fetch_drafter(repository: str, revision: str, advance: Advance) -> Path:
    """Returns the directory, in the hub's cache, of a draft model or of heads, at a branch, tag or commit; downloads
    missing files first. Offline, and if the hub cannot be reached, as `fetch` does. Raises HubError.

    advance: is called with the bytes of all files downloaded so far, and not if none is missing.
    """

    def cached() -> Path | None:
        try:
            found = Path(snapshot_download(repository, revision=revision, local_files_only=True)) / _CONFIG
        except LocalEntryNotFoundError:
            return None
        return found if found.is_file() and _lacking_weights(found.parent, _HEAD_FORMATS, ("",)) is None else None

    return _fetch(
        repository,
        repository,
        cached=cached,
        lacking=lambda: None,
        choose=_drafter_files,
        revision=revision,
        bars=_counting(advance),
    ).parent


def peek(hub_id: HubId) -> tuple[Path | None, int]:
    """Returns the directory, in the hub's cache, of a repository's configuration and card, and the bytes of the weights
    that its id means, without fetching those; None if it has no configuration, 0 if the hub does not say the bytes.

    Raises HubError, also with HF_HUB_OFFLINE.
    """
    if constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set")
    try:
        sizes = _sizes(hub_id.repository)
        names = sorted(sizes)
        gguf = hub_id.file is not None or hub_id.tag is not None or not _is_checkpoint(names, weights=True)
        weights = _gguf(hub_id, names) if gguf else _weights([name for name in names if "/" not in name])
        place = None
        for name in (_CONFIG, _CARD):
            if name in sizes:
                place = Path(hf_hub_download(hub_id.repository, name)).parent
    except _Unavailable as error:
        raise HubError(str(error)) from error
    except _DOWNLOAD_ERRORS as error:
        raise HubError(f"the download from {constants.ENDPOINT} failed: {_line(error)}") from error
    return place, sum(sizes[name] for name in weights)


def _fetch(
    repository: str,
    wanted: str,
    cached: Callable[[], Path | None],
    lacking: Callable[[], str | None],
    choose: Callable[[list[str]], list[str]],
    revision: str | None = None,
    bars: type[tqdm] | None = None,
) -> Path:
    """Returns the path, in the hub's cache, of the first of some files; downloads those that are missing.

    wanted: what messages call them. cached: looks for the first of them, if all are in the cache. lacking: says what an
    incomplete copy in the cache lacks. choose: selects them from the names of the repository's files. revision: by
    default the main branch. bars: the class of progress bars, by default the hub client's. Raises HubError.
    """

    def absence() -> str:
        part = lacking()
        return f"has no {wanted}" if part is None else f"has an incomplete copy of {wanted}, which lacks {part}"

    _log_through_one_handler()
    try:
        Path(constants.HF_HUB_CACHE).expanduser()
    except RuntimeError as error:  # a container's user may have no home
        raise HubError(f"the hub's cache is {constants.HF_HUB_CACHE}: {error} (set HF_HOME)") from error
    if constants.HF_HUB_OFFLINE:
        found = cached()
        if found is None:
            raise HubError(f"HF_HUB_OFFLINE is set, and the hub's cache ({constants.HF_HUB_CACHE}) {absence()}")
        return found
    log.info("hub download started", extra={"repository": wanted, "hub": constants.ENDPOINT})
    try:
        sizes = _sizes(repository, revision)
        files = choose(sorted(sizes))
    except _Unavailable as error:
        found = cached()
        if found is None:
            incomplete = f"; the hub's cache ({constants.HF_HUB_CACHE}) {absence()}" if lacking() else ""
            raise HubError(f"{error}{incomplete}") from error
        log.warning("cached copy used", extra={"repository": wanted, "reason": str(error)})
        return found
    if bars is None and not sys.stderr.isatty():  # progress bars would fill a log
        disable_progress_bars()
        bars = _counting(_logging(wanted, sum(sizes[name] for name in files)))
    try:
        # Without a revision, the first download also records in the cache the main branch's commit.
        first = Path(hf_hub_download(repository, files[0], revision=revision, tqdm_class=bars))
        commit = first.parents[files[0].count("/")].name  # the file may be in a folder of the repository
        for name in files[1:]:
            stop_if_abandoned()
            hf_hub_download(repository, name, revision=commit, tqdm_class=bars)
    except _DOWNLOAD_ERRORS as error:
        raise HubError(f"the download from {constants.ENDPOINT} failed: {_line(error)}") from error
    return first


def _logging(wanted: str, size: int) -> Advance:
    """Returns a function that logs now and then how many of so many bytes are there, and about how long the rest
    takes. Files that were in the cache before do not count."""
    begun = told = time.monotonic()

    def advance(done: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < _LOG_SECONDS or not done:
            return
        told = now
        left = round((now - begun) * max(0, size - done) / done)
        megabytes, of = done // 10**6, size // 10**6
        log.info(
            "hub download continued",
            extra={"repository": wanted, "megabytes": megabytes, "of": of, "seconds_left": left},
        )

    return advance


def _counting(advance: Advance) -> type[tqdm]:
    """Returns a class of progress bars that show nothing, and report the bytes of all of them together."""
    done = 0

    class Counting(tqdm):
        """Counts the bytes of one file."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})
            self.update(self.n)  # what an interrupted download has left

        def update(self, n: float | None = 1) -> None:
            nonlocal done
            done += int(n or 0)
            advance(done)

        def update_transfer(self, n: float) -> None:
            """Ignores the bytes of the network: the client counts those of the file as well."""

    return Counting


class _Unavailable(Exception):
    """Raised if the hub does not answer, or answers with an error."""


def _sizes(repository: str, revision: str | None = None) -> dict[str, int]:
    """Bytes of a repository's files by their names, 0 if the hub does not say them, by one request with a timeout.
    Raises HubError and _Unavailable."""
    try:
        info = HfApi().model_info(
            repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT, files_metadata=True
        )
    except GatedRepoError as error:
        raise HubError(f"{repository} is gated: HF_TOKEN must belong to an account that was granted access") from error
    except RepositoryNotFoundError as error:
        raise HubError(f"no such repository at {constants.ENDPOINT}, or it is private (HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise HubError(f"the repository {repository} has no revision {revision}") from error
    except HFValidationError as error:
        raise HubError(f"is not a hub id: {_line(error)}") from error
    except HfHubHTTPError as error:
        raise _Unavailable(f"the hub at {constants.ENDPOINT} rejected the request: {_line(error)}") from error
    except (_HTTP_ERROR, OSError) as error:
        raise _Unavailable(f"cannot reach the hub at {constants.ENDPOINT}: {_line(error)}") from error
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _is_checkpoint(names: list[str], *, weights: bool) -> bool:
    """Whether a repository has what is needed of a checkpoint, or else no GGUF models in its place."""
    texts = {name for name in names if "/" not in name and name.endswith(_TEXTS)}
    if weights:
        own = (name for name in names if "/" not in name and name.startswith(_WEIGHTS))  # not an adapter's
        has_all = _CONFIG in texts and any(name.endswith(_FORMATS) for name in own)
    else:
        has_all = not texts.isdisjoint(_TOKENIZERS)
    return has_all or not gguf_models(names)


def _checkpoint(names: list[str], *, weights: bool) -> list[str]:
    """The files of a checkpoint, or of its tokenizer alone; one by which a cached copy is found comes first."""
    names = [name for name in names if "/" not in name or _TEMPLATES.fullmatch(name)]
    texts = [name for name in names if name.endswith(_TEXTS)]
    if weights and _CONFIG not in texts:
        raise HubError(f"not a checkpoint: the repository has no {_CONFIG}, and no {SUFFIX} file of a model")
    # In the order in which `_cached` looks for them.
    texts.sort(key=lambda name: (_MARKS.index(name) if name in _MARKS else len(_MARKS), name))
    if not texts:
        raise HubError("the repository has no tokenizer")
    return texts + (_weights(names) if weights else [])


def _weights(names: list[str]) -> list[str]:
    """Weight files in the preferred format, safetensors before PyTorch's; files with other names are left out."""
    for ending in _FORMATS:
        own = [name for name in names if name.endswith(ending) and name.startswith(_WEIGHTS)]
        if own:
            return own
    raise HubError("not a checkpoint: the repository has neither safetensors nor PyTorch weights")


def _drafter_files(names: list[str]) -> list[str]:
    """The files of a draft model or of heads, whatever its weights are called; the configuration comes first."""
    names = [name for name in names if "/" not in name]
    texts = sorted((name for name in names if name.endswith(_TEXTS)), key=lambda name: (name != _CONFIG, name))
    if _CONFIG not in texts:
        raise HubError(f"not a drafter: the repository has no {_CONFIG}")
    for ending in _HEAD_FORMATS:
        if own := [name for name in names if name.endswith(ending) and not name.startswith("training_args")]:
            return texts + own
    raise HubError("not a drafter: the repository has no weights")


def _gguf(hub_id: HubId, names: list[str]) -> list[str]:
    """The files of the GGUF model that an id names, first the one that it names. Raises HubError."""
    files = _named_parts(hub_id, names)
    missing = [name for name in files if name not in names]
    if files and not missing:
        return files
    models = gguf_models(names)
    there = f"; its GGUF files are {_listed(hub_id.repository, models)}" if models else ", and no other GGUF file"
    if missing and hub_id.file not in missing:
        raise HubError(f"the repository {hub_id.repository} has only some parts of {files[0]}: it lacks {missing[0]}")
    if hub_id.tag is None:
        raise HubError(f"the repository {hub_id.repository} has no file {hub_id.file}{there}")
    tags = dict.fromkeys(tag for name in models if (tag := name.tag) is not None)
    if tags:
        there = f"; its tags are {', '.join(list(tags)[:_MOST_NAMED])}"
    raise HubError(f"the repository {hub_id.repository} has no GGUF model with the tag {hub_id.tag}{there}")


def _named_parts(hub_id: HubId, names: Iterable[str]) -> list[str]:
    """The files of the GGUF model that an id names, whether they are there or not, first the one that it names; none if
    no file has the id's tag."""
    if hub_id.file is not None:
        files = GgufName.of(hub_id.file).all_parts()
        return sorted(files, key=lambda name: name != hub_id.file)
    found = model_with_tag(gguf_models(names), hub_id.tag)
    return [] if found is None else found.all_parts()


def _listed(repository: str, models: list[GgufName]) -> str:
    """Ids of models for a message, the first ones of many."""
    named = ", ".join(f"{SCHEME}{repository}/{name.text}" for name in models[:_MOST_NAMED])
    return named + (f" and {len(models) - _MOST_NAMED} more" if len(models) > _MOST_NAMED else "")


def _cached_gguf(hub_id: HubId) -> Path | None:
    """The file of a GGUF model in the cache that an id names; None unless all of the model's files are there."""
    directory, names = _cached_names(hub_id.repository)
    files = _named_parts(hub_id, names)
    return directory / files[0] if files and names.issuperset(files) else None


def _lacking_parts(hub_id: HubId) -> str | None:
    """Says which file a copy in the cache lacks of a GGUF model in several; None if it has none or all."""
    _, names = _cached_names(hub_id.repository)
    files = _named_parts(hub_id, names)
    missing = [name for name in files if name not in names]
    return missing[0] if 0 < len(missing) < len(files) else None


def _cached_names(repository: str) -> tuple[Path, set[str]]:
    """The directory, in the cache, of a repository's main branch, and the names of the files there."""
    try:
        directory = Path(snapshot_download(repository, local_files_only=True))
    except HFValidationError as error:
        raise HubError(f"is not a hub id: {_line(error)}") from error
    except LocalEntryNotFoundError:
        return Path(), set()
    # False for a link to a missing file.
    return directory, {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}


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


def _lacking_weights(
    directory: Path, formats: tuple[str, ...] = _FORMATS, begins: tuple[str, ...] = _WEIGHTS
) -> str | None:
    """Says which of the weight files that its index names, or that it needs without an index, a copy lacks; None if it
    has all. What it has of the first format counts: of others it may have the index alone.

    begins: beginnings of the names of weight files and of indexes.
    """
    names = [each.name for each in directory.iterdir() if each.is_file()]  # False for a link to a missing file
    own = [name for name in names if name.startswith(begins)]
    for ending in formats:
        parts: set[str] = set()
        for index in (name for name in own if name.endswith(f"{ending}.index.json")):
            try:
                parts |= set(json.loads((directory / index).read_text())["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return f"a whole {index}"
        missing = sorted(parts - set(names))
        if missing:
            return missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more files"
        if parts or any(name.endswith(ending) for name in own):
            return None
    return "its weights"


def _log_through_one_handler() -> None:
    """Removes the hub client's own log handler if the program's log has one, so that lines are not logged twice."""
    if logging.getLogger().handlers:
        logging.getLogger("huggingface_hub").handlers.clear()


def _line(error: BaseException) -> str:
    """The message of an error, as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
