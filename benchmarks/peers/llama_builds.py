"""Builds of one release of llama.cpp for several instruction sets, as npm's packages of node-llama-cpp have them.

llama.cpp chooses among such builds when it starts, as its own downloads do. Here the caller chooses, so that one
machine computes what others would.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import PLACE, PeerUnavailable

RELEASE = "0.5.0"
"""The release of llama.cpp."""
PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
"""The npm package that has the builds."""
CODE_NAMES = {"AVX": "sandybridge", "AVX2": "haswell", "AVX-512": "zen4"}
"""llama.cpp's names of builds, by their widest instruction set. The last one has VNNI and BF16, too."""
_SECONDS = 600.0


@dataclass(frozen=True)
class LlamaBuild:
    """A build of llama.cpp."""

    library: Path
    """The library that all builds share."""
    backend: Path
    """The library for one instruction set."""


def llama_builds() -> Mapping[str, LlamaBuild]:
    """Returns the builds by the keys of CODE_NAMES, which npm downloads once (11 MB). Raises PeerUnavailable."""
    place = PLACE / f"llama.cpp-builds-{RELEASE}"
    if not place.exists():
        _download(place)
    files = place / "package" / "bins" / "linux-x64"
    library = files / f"libllama.v{RELEASE}.so"
    return {name: LlamaBuild(library, files / f"libggml-cpu-{code}.so") for name, code in CODE_NAMES.items()}


def _download(place: Path) -> None:
    """Downloads and unpacks the package; nothing of it runs."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        scratch = Path(directory)
        try:
            subprocess.run(
                ["npm", "pack", "--silent", PACKAGE],
                cwd=scratch,
                capture_output=True,
                text=True,
                check=True,
                timeout=_SECONDS,
            )
        except FileNotFoundError:
            raise PeerUnavailable(f"npm is not installed, which downloads {PACKAGE}") from None
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"npm needs more than {_SECONDS:.0f} s for {PACKAGE}") from None
        except subprocess.CalledProcessError as error:
            raise PeerUnavailable(f"npm cannot download {PACKAGE}: {error.stderr.strip()[-400:]}") from None
        with tarfile.open(next(scratch.glob("*.tgz"))) as packed:
            packed.extractall(scratch / "unpacked", filter="data")
        shutil.move(scratch / "unpacked", place)
