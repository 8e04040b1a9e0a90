"""The verifier's engine and a drafter in one process, a thread each: speculation without services.

A thread drafts and another one verifies, as in the two services, and they hand each other the same proposals and
commits. What is missing are the services' event loops, the messages, the second process and the client.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from timings import Timing

from speculative_engine.drafters.draft_model import DraftModelDrafter
from speculative_engine.drafters.drafter import DraftSpec
from speculative_engine.packed_model import PackedModel
from speculative_engine.proposal import Proposal
from speculative_engine.sampling_params import SamplingParams
from speculative_engine.sequence import SequenceSpec
from speculative_engine.step_timing import measure_step_cost
from speculative_engine.verification_engine import EngineLimits, VerificationEngine

_SOURCE = "drafter"
_KEY = 0


class Mailbox:
    """Commands for a thread, run in order by that thread."""

    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()

    def post(self, command: Callable[[], None]) -> None:
        """Have the mailbox's thread run a command."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def take(self, wait: float | None) -> None:
        """Run what was posted; wait for a command as long as told, without limit if None."""
        with self._changed:
            if not self._commands and wait != 0:
                self._changed.wait(wait)
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()


class DraftingThread:
    """Drafts for one sequence as the drafter service does, and hands each proposal to `propose`."""

    def __init__(self, model: PackedModel, cores: Collection[int], propose: Callable[[Proposal], None]):
        self.mailbox = Mailbox()
        self.drafter = DraftModelDrafter(model)
        self._cores = cores
        self._propose = propose
        threading.Thread(target=self._run, name="draft", daemon=True).start()

    def _run(self) -> None:
        os.sched_setaffinity(0, self._cores)  # of this thread
        torch.set_num_threads(1)
        wait: float | None = 0.0
        while True:
            self.mailbox.take(wait)
            busy = self.drafter.busy
            if busy:
                for proposal in self.drafter.grow().proposals.values():
                    self._propose(proposal)
            wait = 0.0 if busy else None


class OneProcess:
    """Generates greedily, with the drafter or without."""

    def __init__(self, target: Path, draft: Path, slots: int, verifier_cores: Collection[int], cores: Collection[int]):
        """The calling thread verifies."""
        os.sched_setaffinity(0, verifier_cores)
        torch.set_num_threads(1)
        model = PackedModel.load(str(target), slots=slots)
        self._engine = VerificationEngine(model, measure_step_cost(model), EngineLimits())
        self._mailbox = Mailbox()
        self._number = 0
        self._drafting = DraftingThread(PackedModel.load(str(draft), slots=slots), cores, self._post)

    def generate(self, prompt: Sequence[int], max_tokens: int, drafted: bool) -> Timing:
        """Run one request."""
        engine, mailbox, drafting = self._engine, self._mailbox, self._drafting
        self._number += 1
        sequence_id = self._number
        sampling = SamplingParams(temperature=0.0, seed=0)
        max_length = len(prompt) + max_tokens
        started = time.perf_counter()
        engine.add(SequenceSpec(sequence_id, prompt, max_length, sampling))
        if drafted:
            engine.attach(sequence_id, _SOURCE)
            spec = DraftSpec(list(prompt), sampling, engine.limits.max_tree_nodes, max_length)
            drafting.mailbox.post(lambda: drafting.drafter.open(_KEY, spec))
        first, first_count, tokens = 0.0, 0, []
        steps = accepted = drafted_tokens = 0
        while engine.running:
            mailbox.take(0.0)
            while (wait := engine.wait_seconds()) > 0:
                mailbox.take(wait)
            for outcome in engine.step().outcomes:
                if not tokens:
                    first, first_count = time.perf_counter(), len(outcome.tokens)
                tokens += outcome.tokens
                steps += 1
                accepted += outcome.accepted
                drafted_tokens += sum(outcome.drafted.values())
                if drafted and outcome.finish is None:
                    length, committed = outcome.committed_length, outcome.tokens
                    drafting.mailbox.post(
                        lambda length=length, committed=committed: drafting.drafter.commit(_KEY, length, committed)
                    )
        ended = time.perf_counter()
        drafting.mailbox.post(lambda: drafting.drafter.close(_KEY))
        return Timing(
            ended - started, ended - first, len(tokens) - first_count, tuple(tokens), steps, drafted_tokens, accepted
        )

    def _post(self, proposal: Proposal) -> None:
        sequence_id = self._number
        arrived_at = time.perf_counter()
        self._mailbox.post(lambda: self._merge(sequence_id, proposal, arrived_at))

    def _merge(self, sequence_id: int, proposal: Proposal, arrived_at: float) -> None:
        if sequence_id == self._number:  # one that came after its request's end is of no use
            self._engine.propose(sequence_id, _SOURCE, proposal, arrived_at)


def serve(connection: Connection, arguments: tuple[Path, Path, int, Collection[int], Collection[int]]) -> None:
    """The life of the process: answers each (prompt, max_tokens, drafted) with a Timing."""
    generator = OneProcess(*arguments)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        connection.send(generator.generate(*order))
