"""Events of the simulated world: rules of Hypothesis's state machine that a test can also choose without Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.harness.world.request_choices import RequestChoices

Choices = Sequence[Any] | RequestChoices
Method = TypeVar("Method", bound=Callable[..., None])


@dataclass(frozen=True)
class Event:
    """An event: a method of a machine, and what it can be called with."""

    name: str
    possible: Callable[[Any], bool]
    """Whether it can happen in a machine's current state."""
    arguments: Mapping[str, Choices]

    def choice(self, rng: random.Random) -> dict[str, Any]:
        """Chooses arguments at random."""
        return {
            name: choices.choice(rng) if isinstance(choices, RequestChoices) else rng.choice(choices)
            for name, choices in self.arguments.items()
        }


def event(possible: Callable[[Any], bool] = lambda machine: True, **arguments: Choices) -> Callable[[Method], Method]:
    """Makes a method an event and a rule; see Event."""

    def mark(method: Method) -> Method:
        strategies = {
            name: choices.strategy() if isinstance(choices, RequestChoices) else st.sampled_from(choices)
            for name, choices in arguments.items()
        }
        marked: Any = precondition(possible)(rule(**strategies)(method))
        marked.event = Event(method.__name__, possible, arguments)
        return marked  # type: ignore[no-any-return]

    return mark


def events_of(machine: type) -> list[Event]:
    """Returns the events of a class, in the order of its source."""
    return [method.event for method in vars(machine).values() if hasattr(method, "event")]
