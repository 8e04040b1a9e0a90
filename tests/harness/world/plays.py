"""Plays of the simulated world without Hypothesis: written ones, and random ones that a seed determines.

A random play chooses all kinds of events equally often, so that a few plays have them all. Hypothesis's are longer or
shorter, and many of them have only some kinds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.events import events_of
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.protocol_machine import ProtocolMachine
from tests.harness.world.request_choices import MEMBERS, REQUESTS


class Play:
    """Has the events of ProtocolMachine as methods, and checks all invariants after each of them."""

    def __init__(self, machine: ProtocolMachine) -> None:
        self.machine = machine
        self.world = machine.world

    def __getattr__(self, name: str) -> Callable[..., None]:
        event = getattr(self.machine, name)

        def happen(*arguments: Any, **named: Any) -> None:
            event(*arguments, **named)
            self.machine.everything_holds()

        return happen


@contextmanager
def play(
    checkpoints: Checkpoints, reference: PlainReference, seen: Counter[str] | None = None, **options: Any
) -> Iterator[Play]:
    """Plays one world, which must end well. seen and options: as World takes them."""
    machine = ProtocolMachine(checkpoints, reference, Counter() if seen is None else seen, **options)
    try:
        yield Play(machine)
    except BaseException:
        machine.world.abandon()
        raise
    machine.teardown()


def play_at_random(playing: Play, seed: int, steps: int) -> None:
    """Makes events happen."""
    rng = random.Random(seed)
    playing.begin(rng.sample(MEMBERS, rng.randint(1, 3)), [REQUESTS.choice(rng) for _ in range(rng.randint(1, 4))])
    events = events_of(ProtocolMachine)
    for _ in range(steps):
        event = rng.choice([each for each in events if each.possible(playing.machine)])
        getattr(playing, event.name)(**event.choice(rng))
