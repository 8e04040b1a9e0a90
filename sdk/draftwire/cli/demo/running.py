"""The demo's services, from start to end."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from draftwire.cli.demo.service import Job, Service
from draftwire.cli.failure import Failure

VERIFIER, DRAFTER = "verifier_service", "drafter_service"
TARGET, DRAFT, EARLY = "target", "draft", "draft-early"
INFLATE = "inflate.py"
TARGET_SIZE = "70M"
"""Parameters of the demo's target. As trained it sits in a processor's cache, where checking eight tokens costs eight
times as much as one. Grown to this size it has the same outputs and is read from memory, as targets in use are."""
KV_SLOTS = "4096"
START_SECONDS = 300.0


@contextmanager
def running(models: Path, console: Console) -> Iterator[tuple[Service, list[Service]]]:
    """Run the services: the verifier, and the drafters in the order in which they take part."""
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-demo-"))
    target = scratch / TARGET
    children: list[Job] = []
    drafters: list[Service] = []
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        inflate = [str(models / INFLATE), str(models / TARGET), str(target), "--parameters", TARGET_SIZE]
        with Loading(console) as loading:
            children.append(growing := Job("inflate", inflate, scratch))
            loading.show(growing, f"growing {TARGET} to {TARGET_SIZE} parameters")
            for name in (EARLY, DRAFT):
                children.append(drafter := Service(name, DRAFTER, models / name, scratch))
                drafters.append(drafter)
                loading.show(drafter, f"loading {name}")
            loading.wait(growing)
            children.append(verifier := Service(TARGET, VERIFIER, target, scratch, "--kv-slots", KV_SLOTS))
            loading.show(verifier, f"loading {TARGET}")
            loading.wait(verifier, *drafters)
        yield verifier, drafters
    except Exception:
        shutil.rmtree(target, ignore_errors=True)
        console.print(f"the services' logs are in {scratch}", soft_wrap=True)
        raise
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        signal.signal(signal.SIGTERM, before)


class Loading:
    """A bar for each child until it is ready."""

    def __init__(self, console: Console) -> None:
        """Draw on a console."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console)
        self._waiting: dict[Job, TaskID] = {}
        self._deadline = time.monotonic() + START_SECONDS

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Draw no more."""
        self._bars.stop()

    def show(self, child: Job, text: str) -> None:
        """Draw a bar for a child."""
        self._waiting[child] = self._bars.add_task(text, total=None)

    def wait(self, *children: Job) -> None:
        """Wait until these are ready.

        Raises:
            Failure: any child has ended without being ready, or they take too long.
        """
        while not self._waiting.keys().isdisjoint(children):
            for child, task in list(self._waiting.items()):
                if child.is_ready():
                    self._bars.update(task, total=1, completed=1)
                    del self._waiting[child]
            if time.monotonic() > self._deadline:
                names = ", ".join(child.name for child in self._waiting)
                raise Failure(f"not ready after {START_SECONDS:.0f} s: {names}")
            time.sleep(0.05)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
