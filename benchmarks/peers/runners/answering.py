"""The conversation between compare_peers.py and the process that runs a peer: JSON lines on stdin and stdout.

The first line names what to load. Each further line is a request; its answer has the tokens and their timing, measured
here with the same clock and the same rule for all peers. A failure is answered with its message.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol


class Arrivals:
    """Records when the first tokens of a request arrive, and how many there are."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.first_count = 0
        self.held: list[float] = []
        """Seconds of each call of a proposer that the engine waits in, where the runner times it."""
        self.drafted = 0
        """Draft tokens of all these calls."""

    def __call__(self, tokens: int) -> None:
        if self.first_at is None and tokens:
            self.first_at, self.first_count = time.perf_counter(), tokens


class Generate(Protocol):
    """Generates greedily past any end-of-sequence token; calls `arrived` with the number of tokens as they come."""

    def __call__(self, prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]: ...


Load = Callable[[dict[str, Any]], tuple[Generate, str]]
"""Loads what an order names: target, draft, method, setting, threads, cores. Also returns a line about precision."""


def answer(load: Load) -> None:
    """Runs a peer's process: loads once, then answers requests."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    generate: Generate | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if generate is None:
                generate, about = load(order)
                reply: dict[str, Any] = {"about": about}
            else:
                reply = _timed(generate, order)
        except Exception as error:  # noqa: BLE001  whatever a peer raises is reported as its failure
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _timed(generate: Generate, order: dict[str, Any]) -> dict[str, Any]:
    arrived = Arrivals()
    started = time.perf_counter()
    tokens = generate(order["prompt"], order["max_tokens"], order["setting"], arrived)
    ended = time.perf_counter()
    if arrived.first_at is None:
        raise RuntimeError("no token came")
    return {
        "token_ids": tokens,
        "seconds": ended - started,
        "decode_seconds": ended - arrived.first_at,
        "decode_tokens": len(tokens) - arrived.first_count,
        "held": arrived.held,
        "drafted": arrived.drafted,
    }
