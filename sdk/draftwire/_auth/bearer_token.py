"""The token that a client shows to a service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from draftwire._auth.watched_files import WatchedFiles

TokenSource = str | Callable[[], str]
"""A token; or a function that returns the present one, called for every call and hence to be quick."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1


def checked_token(text: str) -> str:
    """Returns a token that can be sent.

    Raises:
        ValueError: it has characters that a bearer token cannot have. The message does not show it.
    """
    if not _TOKEN.fullmatch(text):
        raise ValueError("a token is one word of letters, digits and -._~+/ with = at its end only; this one is not")
    return text


class TokenFile:
    """The token that a file holds, alone on its line; read again when the file changes."""

    def __init__(self, path: str | Path) -> None:
        """Reads the file.

        Raises:
            ValueError: it cannot be read or holds no token; the message names the file and does not show what it holds.
        """
        self._path = Path(path)
        self._file = WatchedFiles([path], self._read)

    def __call__(self) -> str:
        """Returns the token."""
        return self._file.get()

    def __repr__(self) -> str:
        """Returns where the token is, without the token."""
        return f"TokenFile({str(self._path)!r})"

    def _read(self) -> str:
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ValueError(f"cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ValueError(f"{self._path} holds no token: it is no text") from None
        try:
            return checked_token(text)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None
