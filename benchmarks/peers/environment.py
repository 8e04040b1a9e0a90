"""A peer's own virtual environment, made once and kept in the temporary directory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PLACE = Path(tempfile.gettempdir()) / "draftwire-peers"
_FREE_BYTES = 8 << 30
_RESOLVE_SECONDS = 1800.0
_INSTALL_SECONDS = 3600.0  # one of them compiles
_READY = "versions.json"


class PeerUnavailable(RuntimeError):
    """Raised when a peer cannot be installed, loaded or run; the message has the reason."""


@dataclass(frozen=True)
class Environment:
    """The packages of a peer from PyPI, and the environment they are installed in."""

    name: str
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    """Packages whose versions are reported."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables during the installation."""
    unusable: tuple[str, ...] = ()
    """Packages that are installed as dependencies and then removed."""

    @property
    def place(self) -> Path:
        """Directory of the environment, which may not exist yet."""
        named = json.dumps([self.requirements, dict(self.variables), sys.version_info[:2], *self.unusable])
        return PLACE / "environments" / f"{self.name}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"

    @property
    def python(self) -> Path:
        """Path of its Python interpreter."""
        return self.place / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether the environment exists."""
        return (self.place / _READY).exists()

    @property
    def versions(self) -> dict[str, str]:
        """Returns the versions of its `packages`; it must exist."""
        versions: dict[str, str] = json.loads((self.place / _READY).read_text())
        return {name: versions[name] for name in self.packages}

    def prepare(self) -> None:
        """Makes the environment unless it exists. Raises PeerUnavailable with pip's message."""
        if self.ready:
            return
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.place.parent).free < _FREE_BYTES:
            raise PeerUnavailable(f"less than {_FREE_BYTES >> 30} GiB are free in {self.place.parent}")
        print(f"installing {', '.join(self.requirements)} in {self.place}", file=sys.stderr)
        self._run([sys.executable, "-m", "venv", str(self.place)], _RESOLVE_SECONDS)
        self._refuse_cuda()
        self._run(self._pip("install", "--quiet", "--no-compile", *self.requirements), _INSTALL_SECONDS)
        if self.unusable:
            self._run(self._pip("uninstall", "--quiet", "--yes", *self.unusable), _RESOLVE_SECONDS)
        listed = json.loads(self._run(self._pip("list", "--format", "json"), _RESOLVE_SECONDS))
        (self.place / _READY).write_text(json.dumps({each["name"].lower(): each["version"] for each in listed}))

    def _refuse_cuda(self) -> None:
        """Raises PeerUnavailable if CUDA would be installed: gigabytes of libraries for a device that is not
        measured."""
        resolved = self._run(
            self._pip("install", "--quiet", "--dry-run", "--report", "-", *self.requirements), _RESOLVE_SECONDS
        )
        names = [each["metadata"]["name"] for each in json.loads(resolved)["install"]]
        cuda = [name for name in names if name.startswith("nvidia-")]
        if cuda:
            raise PeerUnavailable(f"pip would install CUDA libraries: {', '.join(cuda)}")

    def _pip(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments]

    def _run(self, command: Sequence[str], seconds: float) -> str:
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
                env=os.environ | dict(self.variables),
            )
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"{self.name}: {' '.join(command[1:5])} takes longer than {seconds:.0f} s") from None
        if ran.returncode:
            errors = [line for line in ran.stderr.splitlines() if "error" in line.lower()] or ran.stderr.splitlines()
            raise PeerUnavailable(f"{self.name}: {' '.join(command[1:5])}: {' '.join(errors[-3:])}")
        return ran.stdout
