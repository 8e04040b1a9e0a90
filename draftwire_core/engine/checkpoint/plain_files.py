"""Files of a checkpoint, looked at before a library reads them: whether they are files, their sizes, and pointers of
Git LFS in their place; and small objects of JSON."""

from __future__ import annotations

import json
import stat
from itertools import islice
from pathlib import Path
from typing import Any

_MOST_TEXT = 256 << 20
"""Most bytes of a file that is read as a whole. The largest tokenizers today have 33 MB."""
_MOST_JSON = 16 << 20
"""The description of a quantised model may name every layer."""
_TEXTS = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_MOST_ENTRIES = 10_000
_POINTER = b"version https://git-lfs.github.com/spec/"
_LONGEST_POINTER = 1024


def check_directory(directory: Path) -> None:
    """Raises ValueError for a directory in which a library might wait for ever or read without end: one with a
    pipe or a device, or with a text of absurd size."""
    entries = list(islice(directory.iterdir(), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise ValueError(f"not a checkpoint: the directory has more than {_MOST_ENTRIES} entries")
    for entry in entries:
        try:
            found = entry.stat()
        except OSError:  # a link to nothing or to itself, which is as good as missing
            continue
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise ValueError(f"{entry.name} is neither a file nor a directory")
        if entry.name.endswith(_TEXTS) and stat.S_ISREG(found.st_mode) and found.st_size > _MOST_TEXT:
            raise ValueError(f"{entry.name} has {found.st_size} bytes; at most {_MOST_TEXT} are read of such a file")


def check_pointer(path: Path) -> None:
    """Raises ValueError if a file is what Git leaves in place of a large file that was not fetched."""
    try:
        if path.stat().st_size > _LONGEST_POINTER:
            return
        with path.open("rb") as file:
            begins = file.read(len(_POINTER))
    except OSError:  # its reader reports it
        return
    if begins == _POINTER:
        raise ValueError(f"{path.name} is a Git LFS pointer, not the file itself: run git lfs pull in its repository")


def json_object(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file that describes a model, of at most 16 MiB. Raises ValueError, which names the
    file, for a larger one or another thing, and OSError."""
    if file.stat().st_size > _MOST_JSON:
        raise ValueError(f"{file.name} has more than {_MOST_JSON} bytes")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} is not an object")
    return found
