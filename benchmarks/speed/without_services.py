"""Speculation without services: the verifier's engine with a drafter in another thread, or at the end of a pipe.

The drafter drafts and the engine verifies as in the two services, with the same proposals, commits and decisions to
wait, but without the services' event loops, the contract's messages and the client. With the thread, the two share
Python's interpreter lock; with the pipe, the drafter has its own process and lock.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from draftwire._types.speculation import NO_SPECULATION
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_tools.turns import Arrival as Tokens
from draftwire_tools.turns import Batch, Request

_SOURCE = "drafter"

ItemT = TypeVar("ItemT")
Command = tuple[Any, ...]
"""("open", key, spec), ("commit", key, length, tokens) or ("close", key)."""
Arrival = tuple[int, Proposal, float]
"""The sequence, its proposal, and the time of arrival."""


class Queue(Generic[ItemT]):
    """A queue of items from one thread to another."""

    def __init__(self) -> None:
        self._items: list[ItemT] = []
        self._changed = threading.Condition()

    def send(self, item: ItemT) -> None:
        """Appends an item."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def receive(self, wait: float | None) -> list[ItemT]:
        """Returns all queued items; waits up to `wait` seconds for the first, without limit if None."""
        with self._changed:
            if not self._items and wait != 0:
                self._changed.wait(wait)
            items, self._items = self._items, []
        return items


class Pipe(Generic[ItemT]):
    """A queue of items from one process to another, over a connection."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self.send: Callable[[Any], None] = connection.send

    def receive(self, wait: float | None) -> list[ItemT]:
        """Returns all queued items, like Queue.receive."""
        items: list[ItemT] = []
        while self._connection.poll(0.0 if items else wait):
            items.append(self._connection.recv())
        return items


class Link(Protocol):
    """The link to a drafter."""

    def send(self, command: Command) -> None:
        """Sends a command to the drafter."""

    def receive(self, wait: float | None) -> list[Arrival]:
        """Returns the drafter's proposals, after waiting up to `wait` seconds for them."""


class ThreadLink:
    """A drafter in a thread of this process."""

    def __init__(self, model: Path, slots: int, cores: Collection[int]):
        self._commands: Queue[Command] = Queue()
        arrivals: Queue[Arrival] = Queue()
        self.send, self.receive = self._commands.send, arrivals.receive
        drafting = (model, slots, cores, self._commands.receive, arrivals.send)
        threading.Thread(target=_draft, args=drafting, name="draft", daemon=True).start()


class PipeLink:
    """A drafter in a process of its own."""

    def __init__(self, model: Path, slots: int, cores: Collection[int]):
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        pipe: Pipe[Arrival] = Pipe(here)
        self.send, self.receive = pipe.send, pipe.receive
        context.Process(target=_serve_pipe, args=(model, slots, cores, there), daemon=True).start()


def _serve_pipe(model: Path, slots: int, cores: Collection[int], connection: Connection) -> None:
    pipe: Pipe[Command] = Pipe(connection)
    _draft(model, slots, cores, pipe.receive, pipe.send)


def _draft(
    model: Path,
    slots: int,
    cores: Collection[int],
    receive: Callable[[float | None], list[Command]],
    send: Callable[[Arrival], None],
) -> None:
    """Runs a drafter until its commands end."""
    os.sched_setaffinity(0, cores)  # of this thread
    torch.set_num_threads(1)
    loaded = PackedModel.load(str(model), slots=slots, row_exact=False)
    drafter = DraftModelDrafter(loaded, TreeGrowth(measure_step_cost(loaded)))
    while True:
        for name, *arguments in receive(0.0 if drafter.busy else None):
            {"open": drafter.open, "commit": drafter.commit, "close": drafter.close}[name](*arguments)
        if drafter.busy:
            for key, proposal in drafter.grow().proposals.items():
                send((key, proposal, time.perf_counter()))


class WithoutServices:
    """Generates greedily, in this process."""

    def __init__(self, target: Path, draft: Path, slots: int, verifier_cores: Collection[int], cores: Collection[int]):
        """The calling thread verifies."""
        os.sched_setaffinity(0, verifier_cores)
        torch.set_num_threads(1)
        model = PackedModel.load(str(target), slots=slots)
        self._engine = VerificationEngine(model, measure_step_cost(model), EngineLimits())
        self._links: dict[str, Link] = {
            "thread": ThreadLink(draft, slots, cores),
            "pipe": PipeLink(draft, slots, cores),
        }
        self._number = 0

    def generate(self, prompt: Sequence[int], max_tokens: int, drafter: str | None) -> Batch:
        """Runs one request with the drafter in a "thread" or at the end of a "pipe", or without one."""
        engine = self._engine
        link = self._links[drafter] if drafter else None
        self._number += 1
        number = self._number
        sampling = SamplingParams(temperature=0.0, seed=0)
        max_length = len(prompt) + max_tokens
        started = time.perf_counter()
        engine.add(SequenceSpec(number, prompt, max_length, sampling))
        if link is not None:
            engine.attach(number, _SOURCE)
            link.send(("open", number, DraftSpec(list(prompt), sampling, engine.limits.max_tree_nodes, max_length)))
        arrivals: list[Tokens] = []
        tokens: list[int] = []
        steps = accepted = drafted = 0
        while engine.running:
            wait = 0.0
            while link is not None:
                for key, proposal, arrived_at in link.receive(wait):
                    engine.propose(key, _SOURCE, proposal, arrived_at)
                wait = engine.wait_seconds()
                if wait <= 0:
                    break
            for outcome in engine.step().outcomes:
                arrivals.append(Tokens(time.perf_counter(), len(outcome.tokens)))
                tokens += outcome.tokens
                steps += 1
                accepted += outcome.accepted
                drafted += sum(outcome.drafted.values())
                if link is not None and outcome.finish is None:
                    link.send(("commit", number, outcome.committed_length, outcome.tokens))
        if link is not None:
            link.send(("close", number))
        stats = replace(NO_SPECULATION, steps=steps, tokens=len(tokens), draft_tokens=drafted, accepted_tokens=accepted)
        return Batch((Request(tuple(arrivals), tuple(tokens), stats, started),))


def serve(connection: Connection, arguments: tuple[Path, Path, int, Collection[int], Collection[int]]) -> None:
    """Runs the process: answers each (prompt, max_tokens, drafter) with a batch of one."""
    generator = WithoutServices(*arguments)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        connection.send(generator.generate(*order))
