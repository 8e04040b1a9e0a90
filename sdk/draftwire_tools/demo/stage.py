"""The child processes of a demo, from start to end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from draftwire_tools.loading import Loading
from draftwire_tools.service import DRAFTER, VERIFIER, Job, Service, call_here

JobT = TypeVar("JobT", bound=Job)


@dataclass(slots=True)
class Stage:
    """Starts child processes, and shows that they load."""

    scratch: Path
    """Directory of the demo's own files, logs among them."""
    loading: Loading
    children: list[Job] = field(default_factory=list)
    """All children, in the order of their start."""
    models: list[Path] = field(default_factory=list)
    """Models that were made for the demo, which are no logs."""
    keeps_logs: bool = True
    """Whether the logs are kept, and their place is printed, if the demo fails."""

    def job(self, name: str, arguments: Sequence[str], text: str) -> Job:
        """Starts Python with some arguments. text: what it does."""
        return self._shown(Job(name, arguments, self.scratch), text)

    def verifier(self, name: str, model: Path, *flags: str) -> Service:
        """Starts a verifier."""
        return self._shown(Service(name, VERIFIER, model, self.scratch, *flags), f"loading {name}")

    def drafter(self, name: str, model: Path, *flags: str, needed: bool = True) -> Service:
        """Starts a drafter. needed: whether its end is a failure; else it is only told."""
        return self._shown(Service(name, DRAFTER, model, self.scratch, *flags), f"loading {name}", needed=needed)

    def _shown(self, child: JobT, text: str, *, needed: bool = True) -> JobT:
        self.children.append(child)
        self.loading.show(child, text, needed=needed)
        return child


@contextmanager
def stage(console: Console) -> Iterator[Stage]:
    """Runs child processes, which end with the context."""
    call_here()
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-demo-"))
    made = Stage(scratch, Loading(console))
    failed = False
    try:
        yield made
    except Exception:
        failed = True
        raise
    finally:
        for child in made.children:
            child.terminate()
        for child in made.children:
            child.wait()
        if failed and made.keeps_logs:
            for model in made.models:
                shutil.rmtree(model, ignore_errors=True)
            console.print(f"the services' logs are in {scratch}", soft_wrap=True)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
