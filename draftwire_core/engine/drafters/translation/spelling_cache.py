"""Two vocabularies spelled in each other's tokens, kept in files, so that a restart need not spell them again."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import tokenizers

from draftwire_core.engine.drafters.translation.token_lists import TokenLists
from draftwire_core.engine.drafters.translation.token_map import Spelled
from draftwire_core.engine.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

FORMAT = 3
"""Part of the files' names, to be raised whenever the content for the same tokenizers changes."""
MOST_FILES = 32
"""Files that are kept, the last used ones; one takes about 5 MB for large vocabularies."""
_MOST_BYTES = 1 << 28
"""Size above which a file is not one of ours."""
_FEWEST_TOKENS = 20_000
"""Tokens of both vocabularies below which they are spelled faster than a file is worth."""
_STALE_SECONDS = 3600.0
"""Age of a file that its writer never finished."""
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile)


def cache_directory() -> Path | None:
    """Returns `draftwire/spellings` in the user's cache directory, or None for a user without a home."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(caches) / "draftwire" / "spellings"


class SpellingCache:
    """The files of one directory. Several processes may use it at once."""

    def __init__(self, directory: Path | None, *, fewest_tokens: int = _FEWEST_TOKENS):
        """directory: None keeps nothing. fewest_tokens: of both vocabularies, for which a file is written."""
        self._directory = directory
        self._fewest_tokens = fewest_tokens

    def spelled(self, target: Vocabulary, draft: Vocabulary) -> Spelled:
        """Returns the spellings from their file, or makes them and writes it."""
        file = self._file(target, draft)
        if file is not None and (kept := _read(file, target, draft)) is not None:
            return kept
        started = time.perf_counter()
        spelled = Spelled.of(target, draft)
        if file is not None:
            log.info(
                "token map computed",
                extra={"seconds": round(time.perf_counter() - started, 3), "file": str(file)},
            )
            _write(file, spelled)
        return spelled

    def _file(self, target: Vocabulary, draft: Vocabulary) -> Path | None:
        known = target.sha256 is not None and draft.sha256 is not None
        if self._directory is None or not known or len(target) + len(draft) < self._fewest_tokens:
            return None
        parts = f"{FORMAT} {tokenizers.__version__} {target.sha256} {draft.sha256}"
        return self._directory / f"{hashlib.sha256(parts.encode()).hexdigest()}.npz"


def _read(file: Path, target: Vocabulary, draft: Vocabulary) -> Spelled | None:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        with np.load(file, allow_pickle=False) as arrays:
            spelled = Spelled(
                _checked(arrays["target_tokens"], arrays["target_counts"], target, draft),
                _checked(arrays["draft_tokens"], arrays["draft_counts"], draft, target),
            )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        log.warning("token map file damaged", extra={"file": str(file), "reason": reason})
        return None
    with suppress(OSError):
        os.utime(file)
    return spelled


def _checked(tokens: np.ndarray, counts: np.ndarray, of: Vocabulary, other: Vocabulary) -> TokenLists:
    if tokens.dtype != np.int32 or counts.dtype != np.int32 or tokens.ndim != 1 or counts.shape != (len(of),):
        raise ValueError("its arrays have other shapes")
    if (counts < 0).any() or int(counts.sum(dtype=np.int64)) != len(tokens):
        raise ValueError("its lists do not add up")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(other):
        raise ValueError("it has unknown tokens")
    return TokenLists(tokens, counts)


def _write(file: Path, spelled: Spelled) -> None:
    """Writes a file at once, and removes those not used for longest. Without it the next start only takes longer."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            try:
                np.savez(
                    part,
                    target_tokens=spelled.target.tokens,
                    target_counts=spelled.target.counts,
                    draft_tokens=spelled.draft.tokens,
                    draft_counts=spelled.draft.counts,
                )
                part.flush()
                Path(part.name).replace(file)
            except BaseException:
                Path(part.name).unlink()
                raise
        _tidy(file.parent)
    except OSError as error:
        log.info("token map not cached", extra={"file": str(file), "reason": str(error)})


def _tidy(directory: Path) -> None:
    files = sorted(directory.glob("*.npz"), key=_used, reverse=True)
    old = [part for part in directory.glob("*.part") if time.time() - _used(part) > _STALE_SECONDS]
    for file in (*files[MOST_FILES:], *old):
        file.unlink(missing_ok=True)


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another process has removed it
        return 0.0
