"""A peer's process: used in turn, stopped in between, with its failures reported."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers import process as peer_process
from benchmarks.peers.catalogue import Method, Peer
from benchmarks.peers.environment import PeerUnavailable
from benchmarks.peers.process import PeerProcess
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

COUNTING = """
import os, sys
from benchmarks.peers.runners.answering import answer

def load(order):
    if order["target"] == "none":
        raise FileNotFoundError("no such model")
    print("libraries talk on stdout")

    def generate(prompt, max_tokens, setting, arrived):
        if setting.get("dies"):
            sys.stderr.write("out of memory\\n")
            sys.stderr.flush()
            os._exit(3)
        tokens = [prompt[-1] + step for step in range(max_tokens)]
        arrived(2)
        arrived(max_tokens - 2)
        return tokens

    return generate, f"{order['threads']} threads"

answer(load)
"""
ORDER = {"method": "plain", "target": "some", "threads": 2}


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerProcess]:
    monkeypatch.setattr(peer_process, "PLACE", tmp_path)
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.chdir(tmp_path)  # where its process also looks for the module
    running = PeerProcess(Peer("counting", "counting", (Method("plain"),)), 2, [0])
    yield running
    running.stop()


def stops(process: PeerProcess) -> bool:
    """Waits until the process is stopped: signals take a while on a busy machine."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


def test_requests_are_answered_and_timed(process: PeerProcess) -> None:
    assert process.load(ORDER) == "2 threads"
    for first in (10, 20):
        timing = process.generate([1, first], 5, {})
        assert timing.token_ids == (tuple(range(first, first + 5)),)
        assert timing.tokens == 3  # two came first
        assert 0 < timing.seconds <= timing.whole_seconds
    assert "libraries talk on stdout" in process.log.read_text()


def test_a_process_is_stopped_while_nobody_asks_it(process: PeerProcess) -> None:
    process.load(ORDER)
    assert stops(process)
    process.generate([1], 3, {})
    assert stops(process)


def test_failures_are_told_with_their_reason(process: PeerProcess) -> None:
    with pytest.raises(PeerUnavailable, match="FileNotFoundError: no such model"):
        process.load(ORDER | {"target": "none"})
    process.load(ORDER)
    with pytest.raises(PeerUnavailable, match="has ended, status 3: out of memory"):
        process.generate([1], 3, {"dies": True})
