"""Services that a comparison starts for itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from draftwire_tools.loading import Loading, handle_signals, restore_signals
from draftwire_tools.service import DRAFTER, VERIFIER, Service, call_here

GGUF = ".gguf"
_THREADS = 1
"""CPU threads of each service started here; see `Service`."""


@dataclass(frozen=True, slots=True)
class Services:
    """A verifier and its drafters."""

    verifier: str
    """The verifier's address."""
    drafters: Mapping[str, Service] = field(default_factory=dict)
    """Drafter services started with it, by name."""
    threads: int | None = None
    """Threads of each service; None if the verifier was already running."""

    def memory(self) -> dict[str, int]:
        """Returns the resident memory of drafter services by address, if the system reports it."""
        found = {drafter.address: _resident_bytes(drafter.pid) for drafter in self.drafters.values()}
        return {address: size for address, size in found.items() if size is not None}


def is_model(path: Path) -> bool:
    """Returns whether a path is that of a checkpoint's directory, of a GGUF file, or of a directory with such a file.
    What is in the files is for the services to say."""
    return (path.is_file() and path.suffix == GGUF) or (path / "config.json").is_file() or any(path.glob(f"*{GGUF}"))


def drafter_names(models: Sequence[Path]) -> list[str]:
    """Returns the names of drafters with these models: those of the directories, or of the files without .gguf.

    Raises:
        ValueError: two models have the same name.
    """
    names = [model.resolve().name.removesuffix(GGUF) for model in models]
    if len(set(names)) < len(names):
        raise ValueError(f"--draft: the models must have different names, got {', '.join(names)}")
    return names


@contextmanager
def started(target: Path, drafts: Sequence[Path], console: Console) -> Iterator[Services]:
    """Runs a verifier and a drafter service for each draft model, which translates if its tokenizer is not the
    target's."""
    if drafts:  # without them, the verifier may be to call drafters elsewhere
        call_here()
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-bench-"))
    children: list[Service] = []
    before = handle_signals()
    try:
        with Loading(console) as loading:

            def start(name: str, module: str, model: Path, *flags: str) -> Service:
                children.append(service := Service(name, module, model, scratch, *flags))
                loading.show(service, f"loading {name}")
                return service

            verifier = start("verifier", VERIFIER, target)
            drafters = {
                name: start(name, DRAFTER, model, "--target-tokenizer", str(target))
                for name, model in zip(drafter_names(drafts), drafts, strict=True)
            }
            loading.wait(*children)
        yield Services(verifier.address, drafters, _THREADS)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        restore_signals(before)
        shutil.rmtree(scratch, ignore_errors=True)


def _resident_bytes(pid: int) -> int | None:
    """Returns the resident memory that Linux reports for a process; None on other systems."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")]
    return found[0] if found else None
