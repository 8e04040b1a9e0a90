"""The demo's services, from start to end."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from draftwire_tools.loading import Loading, interrupt
from draftwire_tools.service import DRAFTER, VERIFIER, Job, Service

TARGET, DRAFT, EARLY = "target", "draft", "draft-early"
INFLATE = "inflate.py"
TARGET_SIZE = "70M"
"""Parameters of the demo's target. As trained it sits in a processor's cache, where checking eight tokens costs eight
times as much as one. Grown to this size it has the same outputs and is read from memory, as targets in use are."""
KV_SLOTS = "4096"


@contextmanager
def running(models: Path, console: Console) -> Iterator[tuple[Service, list[Service]]]:
    """Runs the services: the verifier, and the drafters in the order in which they take part."""
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-demo-"))
    target = scratch / TARGET
    children: list[Job] = []
    drafters: list[Service] = []
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        inflate = [str(models / INFLATE), str(models / TARGET), str(target), "--parameters", TARGET_SIZE]
        with Loading(console) as loading:
            children.append(growing := Job("inflate", inflate, scratch))
            loading.show(growing, f"growing {TARGET} to {TARGET_SIZE} parameters")
            drafters.append(_drafter(EARLY, models, scratch, children, loading))
            loading.wait(growing)
            children.append(verifier := Service(TARGET, VERIFIER, target, scratch, "--kv-slots", KV_SLOTS))
            loading.show(verifier, f"loading {TARGET}")
            # One after the other: on two cores a third process would delay the target, which takes the longest.
            loading.wait(*drafters)
            drafters.append(_drafter(DRAFT, models, scratch, children, loading))
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


def _drafter(name: str, models: Path, scratch: Path, children: list[Job], loading: Loading) -> Service:
    """Starts a drafter and shows that it loads."""
    drafter = Service(name, DRAFTER, models / name, scratch)
    children.append(drafter)
    loading.show(drafter, f"loading {name}")
    return drafter
