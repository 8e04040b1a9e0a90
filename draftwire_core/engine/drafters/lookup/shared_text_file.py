"""A file of texts from which `local:suffix` begins: token ids, the texts to be kept longest first.

The first line is JSON: `format`, the fingerprint of the `target`, in which its tokenizer is included, and the number of
`ids`. The ids follow, each as an unsigned little-endian number of 32 bits. After each text comes the id 2**32 - 1.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FORMAT = "draftwire texts 1"
_LONGEST_HEADER = 4096
_END = (1 << 32) - 1


class SharedTextFileError(ValueError):
    """Raised for a file that cannot be used; the message names it and the reason."""


def write_shared_texts(path: Path, texts: Iterable[Sequence[int]], target: str) -> None:
    """Replaces a file at once, so that readers find the texts before or these. Nobody but the user may read it.

    texts: at least one token each, those to be kept longest first. target: fingerprint, as callers of the verifier see
    it. Raises OSError.
    """
    parts = [np.append(np.array(text, "<u4"), np.array(_END, "<u4")) for text in texts]
    ids = np.concatenate(parts) if parts else np.empty(0, "<u4")
    header = json.dumps({"format": _FORMAT, "target": target, "ids": len(ids)})
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(header.encode() + b"\n" + ids.astype("<u4").tobytes())
    new.replace(path)


def read_shared_texts(path: Path, target: str, most_tokens: int) -> list[list[int]]:
    """Returns the first texts of a file, with up to so many tokens together; none if there is no file.

    A text of which only a part fits is cut. target: fingerprint of the target. Raises SharedTextFileError.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SharedTextFileError(f"{path} is not a file")
        with path.open("rb") as file:
            count = _read_header(path, file.readline(_LONGEST_HEADER), target)
            size = os.fstat(file.fileno()).st_size - file.tell()
            if size != 4 * count:
                raise SharedTextFileError(
                    f"{path} is damaged: {size} bytes of token ids found, {4 * count} expected; delete it"
                )
            # A text has at least one token, so half of the ids are tokens.
            ids = np.frombuffer(file.read(4 * min(count, 2 * most_tokens)), "<u4")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SharedTextFileError(f"{path} cannot be read: {error.strerror}") from error
    return _cut(ids, most_tokens)


def _cut(ids: NDArray[np.uint32], most_tokens: int) -> list[list[int]]:
    """Divides ids into texts with up to so many tokens."""
    texts: list[list[int]] = []
    begin, room = 0, most_tokens
    for end in [*np.flatnonzero(ids == _END).tolist(), len(ids)]:
        text = ids[begin:end][:room].tolist()
        if text:
            texts.append(text)
        begin, room = end + 1, room - len(text)
    return texts


def _read_header(path: Path, line: bytes, target: str) -> int:
    """Returns the number of ids. Raises SharedTextFileError."""
    try:
        header = json.loads(line)
        known, found, count = header["format"] == _FORMAT, header["target"], header["ids"]
    except (ValueError, KeyError, TypeError, RecursionError):
        known, found, count = False, None, None
    if not known or not isinstance(count, int):
        raise SharedTextFileError(f"{path} is not a file of texts that draftwire has written")
    if found != target:
        raise SharedTextFileError(f"{path} has texts of a target with another fingerprint")
    return count
