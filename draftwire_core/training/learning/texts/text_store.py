"""Texts on disk: append-only files, of which the oldest is dropped when all are too large.

A record is a header (lengths, origin and a checksum), the tokens, and the likeliest tokens at the positions of the
output if they are known. A file is named after the number of output tokens
that were stored before it, so that texts are counted over restarts. A process that is killed within a record loses
that record. If the disk is full, texts are kept in memory alone.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np

from draftwire_core.training.learning.texts.served_text import Origin, ServedText
from draftwire_core.training.learning.texts.top_tokens import TopTokens

# Magic, origin, likeliest tokens of a position (0 in earlier files), tokens of the prompt, of the output, checksum of
# what follows.
_HEADER = struct.Struct("<4sHHIII")
_MAGIC = b"dwt1"
_SUFFIX = ".texts"
_DESCRIPTION = "texts.json"
_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_SEGMENTS = 16
"""Files that the texts are divided into, so that a sixteenth of them is dropped at a time."""


@dataclass
class _Segment:
    """The texts of one file."""

    path: Path
    texts: list[ServedText] = field(default_factory=list)
    size: int = 0
    """Bytes of its texts, those included that could not be written."""
    end: int = 0
    """End of the last record in the file."""


class TextStore:
    """The texts of one target, also kept in memory. One process at a time may use a directory; threads may share it."""

    def __init__(self, directory: Path, target: str, *, most_bytes: int, warn: Callable[[str], None]):
        """Opens or creates a store. Texts of another target are deleted.

        target: fingerprint of the target. most_bytes: bound of the files, and of the texts in memory. warn: receives
        warnings.
        """
        self._directory = directory
        self._segment_bytes = max(1, most_bytes // _SEGMENTS)
        self._most_bytes = most_bytes
        self._report = warn
        self._lock = threading.Lock()
        self._failing = False
        self._segments: deque[_Segment] = deque()
        self._keys: set[bytes] = set()
        self.tokens = 0
        """Output tokens stored since the first start, dropped ones included."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._begin(target)
            for path in sorted(directory.glob(f"*{_SUFFIX}")):
                self._read(path)
        except OSError as error:
            self._warn(error)
        self._drop_oldest()

    def __len__(self) -> int:
        return sum(len(segment.texts) for segment in self._segments)

    def add(self, text: ServedText) -> bool:
        """Stores a text; returns False for one that is stored already, or whose output is empty."""
        with self._lock:
            if not len(text.output) or text.key in self._keys:
                return False
            record = _record(text)
            if not self._segments or self._segments[-1].size + len(record) > self._segment_bytes:
                self._segments.append(_Segment(self._directory / f"{self.tokens:012d}{_SUFFIX}"))
            segment = self._segments[-1]
            self._write(segment, record)
            self._keep(segment, text, len(record))
            self._drop_oldest()
            return True

    def newest(self, most_tokens: int, *, held_out: bool) -> list[ServedText]:
        """Returns the newest texts that have up to so many output tokens together, newest first; at least one, if there
        is any. held_out: whether the held-out ones or the others."""
        found: list[ServedText] = []
        tokens = 0
        with self._lock:
            texts = [text for segment in self._segments for text in segment.texts if text.held_out == held_out]
        for text in reversed(texts):
            tokens += len(text.output)
            if found and tokens > most_tokens:
                break
            found.append(text)
        return found

    def texts(self) -> list[ServedText]:
        """Returns all texts, newest first."""
        with self._lock:
            return [text for segment in reversed(self._segments) for text in reversed(segment.texts)]

    def _begin(self, target: str) -> None:
        """Deletes texts of another target, and notes this one."""
        path = self._directory / _DESCRIPTION
        try:
            found = json.loads(path.read_text()).get("target") if path.exists() else None
        except (ValueError, AttributeError):  # damaged: whose texts these are is not known
            found = None
        if found == target:
            return
        for segment in self._directory.glob(f"*{_SUFFIX}"):
            segment.unlink()
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"target": target}) + "\n")
        new.replace(path)

    def _read(self, path: Path) -> None:
        """Reads a file up to its first record that is not whole."""
        segment = _Segment(path)
        self._segments.append(segment)
        self.tokens = max(self.tokens, int(path.stem) if path.stem.isdecimal() else 0)
        with path.open("rb") as file:
            while (text := _next(file)) is not None:
                self._keep(segment, text, file.tell() - segment.end)
                segment.end = file.tell()

    def _keep(self, segment: _Segment, text: ServedText, size: int) -> None:
        segment.texts.append(text)
        segment.size += size
        self._keys.add(text.key)
        self.tokens += len(text.output)

    def _write(self, segment: _Segment, record: bytes) -> None:
        """Appends a record to a segment's file. One that was written in part is written over by the next."""
        try:
            with segment.path.open("r+b" if segment.path.exists() else "w+b") as file:
                segment.path.chmod(0o600)
                file.seek(segment.end)
                file.truncate()
                file.write(record)
        except OSError as error:
            self._warn(error)
        else:
            segment.end += len(record)
            self._failing = False

    def _drop_oldest(self) -> None:
        while len(self._segments) > 1 and sum(segment.size for segment in self._segments) > self._most_bytes:
            oldest = self._segments.popleft()
            self._keys.difference_update(text.key for text in oldest.texts)
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        """Says once, until a text is written again, that texts are not written."""
        if not self._failing:
            self._failing = True
            self._report(
                f"warning: {self._directory}: {error.strerror or error}; texts are kept in memory until it works"
            )


def _record(text: ServedText) -> bytes:
    payload = text.prompt.astype("<i4").tobytes() + text.output.astype("<i4").tobytes() + text.top.encoded()
    numbers = _ORIGINS.index(text.origin), text.top.top, len(text.prompt), len(text.output)
    return _HEADER.pack(_MAGIC, *numbers, zlib.crc32(payload)) + payload


def _next(file: BinaryIO) -> ServedText | None:
    """Returns the text of the next record; None if there is no whole one."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, origin, top, prompt, output, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or origin >= len(_ORIGINS):
        return None
    size = 4 * (prompt + output)
    payload = file.read(size + TopTokens.size_of(output, top))
    if len(payload) < size + TopTokens.size_of(output, top) or zlib.crc32(payload) != checksum:
        return None
    tokens = np.frombuffer(payload, "<i4", prompt + output).astype(np.int32)
    likeliest = TopTokens.decoded(payload[size:], output, top)
    return ServedText(tokens[:prompt], tokens[prompt:], _ORIGINS[origin], likeliest)
