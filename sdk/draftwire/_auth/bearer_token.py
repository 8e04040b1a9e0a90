"""The bearer token that a client presents to a service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from draftwire._auth.watched_files import WatchedFiles

TokenSource = str | Callable[[], str]
"""A token, or a function that returns the current one. It runs for every call and should be fast."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1


def checked_token(text: str) -> str:
    """Returns a token after checking that it can be sent.

    Raises:
        ValueError: the token has invalid characters. The message does not show the token.
    """
    if not _TOKEN.fullmatch(text):
        raise ValueError("a token must be one word of letters, digits and -._~+/, with = only at its end")
    return text


class TokenFile:
    """A token in a file, alone on its line. The file is read again when it changes."""

    def __init__(self, path: str | Path) -> None:
        """Reads the file.

        Raises:
            ValueError: the file cannot be read or holds no token. The message names the file but not its contents.
        """
        self._path = Path(path)
        self._file = WatchedFiles([path], self._read)

    def __call__(self) -> str:
        """Returns the token."""
        return self._file.get()

    def __repr__(self) -> str:
        """Returns the token's file, without the token."""
        return f"TokenFile({str(self._path)!r})"

    def _read(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8-sig").strip()
        except OSError as error:
            raise ValueError(f"cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ValueError(f"{self._path} contains no token: it is not text") from None
        try:
            return checked_token(text)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None
