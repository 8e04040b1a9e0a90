"""Memory is returned to the system after large messages."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from draftwire_core.runtime.process import memory
from draftwire_core.runtime.process.memory import HeapTrimmer
from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

BLOCK = 64 * 1024
BLOCKS = 4096
"""256 MiB."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def leave_holes() -> list[bytes]:
    """Allocates a lot and frees most of it; the rest keeps the heap's pages from being returned."""
    blocks = [bytes(BLOCK) for _ in range(BLOCKS)]
    return blocks[::64]


@asynccontextmanager
async def running(trimmer: HeapTrimmer) -> AsyncIterator[None]:
    task = asyncio.create_task(trimmer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SECONDS", 0.0)


async def test_after_large_messages_freed_memory_goes_back() -> None:
    trimmer = HeapTrimmer()
    memory.trim_heap()
    kept = leave_holes()
    full = resident()
    async with running(trimmer):
        trimmer.note(1 << 24)
        async with asyncio.timeout(PATIENCE):
            while resident() > full - BLOCKS * BLOCK // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert len(kept) == BLOCKS // 64


@pytest.mark.parametrize("sizes", [[1000] * 10_000, [1 << 20] * 3], ids=["small ones", "few large ones"])
async def test_for_others_nothing_is_done(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    trims: list[None] = []
    monkeypatch.setattr(memory, "trim_heap", lambda: trims.append(None))
    trimmer = HeapTrimmer()
    async with running(trimmer):
        for size in sizes:
            trimmer.note(size)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not trimmer._large.is_set()
        trimmer.note(1 << 22)
        async with asyncio.timeout(PATIENCE):
            while not trims:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    assert len(trims) == 1


async def test_what_is_counted_before_a_trim_has_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(memory, "trim_heap", lambda: trims.append(None))
    monkeypatch.setattr(memory, "_SECONDS", 0.05)
    trimmer = HeapTrimmer()
    async with running(trimmer):
        trimmer.note(1 << 22)
        await asyncio.sleep(0.01)
        trimmer.note(1 << 22)  # its message may not be free yet
        async with asyncio.timeout(PATIENCE):
            while len(trims) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.mark.processes
class TestAnotherProcess:
    def test_the_peak_is_not_that_of_the_parent(self) -> None:
        held = b"x" * 200_000_000
        program = (
            "from draftwire_core.runtime.process.memory import peak_megabytes as peak; a = peak(); b = "
            "b'x' * 50_000_000; "
        )
        program += "print(a, peak())"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        before, after = map(int, done.stdout.split())
        assert before < 100 and len(held) == 200_000_000
        assert 45 <= after - before <= 55
