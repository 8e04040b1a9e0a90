"""Further verifiers of a check end with it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from draftwire.cli.failure import Failure
from draftwire_tools.check import other_verifiers
from draftwire_tools.check.other_verifiers import Variant


class Starting:
    """A service that takes a moment to start."""

    def __init__(self, *_: Any) -> None:
        time.sleep(0.1)
        self.running = True
        STARTED.append(self)

    def is_ready(self) -> bool:
        if not self.running:
            raise Failure("it has ended")
        return False

    def terminate(self) -> None:
        self.running = False

    def wait(self) -> None:
        pass


STARTED: list[Starting] = []


async def test_a_check_that_is_interrupted_while_one_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_verifiers, "Service", Starting)
    STARTED.clear()
    starting = asyncio.create_task(other_verifiers._started(tmp_path, Variant("one", ())).__aenter__())
    asyncio.get_running_loop().call_later(0.05, starting.cancel)
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(time.sleep, 0.2)
    assert [each.running for each in STARTED] == [False]
