"""A scene of the demo: a request, and what happens to its drafters while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftwire._sync.client import Client
from draftwire._sync.generations import GenerationStream
from draftwire._types.generation import Generation
from draftwire._types.options import GenerateOptions
from draftwire.cli.results import json_of


@dataclass(frozen=True, slots=True)
class DemoDrafter:
    """A drafter of the demo."""

    name: str
    """The drafter's name in the pool."""
    address: str
    """The drafter's address."""
    kill: Callable[[], None] = lambda: None
    """Function that kills the drafter's process, if it has one."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to the drafters while a request runs."""

    share: float
    """Share of the tokens after which it begins; it also waits for the change before it."""
    make: Callable[[Client], object]
    """Function that makes it."""
    event: str = ""
    """The screen's line when it is done; empty for none."""


def attached(drafter: DemoDrafter, share: float = 0.0) -> Change:
    """Returns the change that attaches a drafter."""
    return Change(share, lambda client: client.drafters.attach(drafter.address, drafter.name))


def swapped(old: DemoDrafter, new: DemoDrafter, share: float) -> Change:
    """Returns the change that swaps one drafter for another one, which is attached."""
    event = f"swapped {old.name} for {new.name}"
    return Change(share, lambda client: client.drafters.swap(old.name, new.name), event)


def killed(drafter: DemoDrafter, share: float) -> Change:
    """Returns the change that kills a drafter's process."""
    return Change(share, lambda _: drafter.kill(), f"killed {drafter.name}")


@dataclass(frozen=True, slots=True)
class Scene:
    """A request with drafters, compared with the same request without."""

    title: str
    """Title of its column in the table."""
    prompt: str
    """The text to continue, or the message to answer."""
    answers: bool
    """Whether the prompt is a message, to be rendered by the chat template."""
    options: GenerateOptions
    """The request's options."""
    drafters: Sequence[DemoDrafter]
    """Drafters to attach before it begins."""
    changes: Sequence[Change]
    """Changes while it runs, in this order."""

    def stream(self, client: Client, options: GenerateOptions) -> GenerationStream:
        """Starts the request with some of its options replaced."""
        merged: GenerateOptions = {**self.options, **options}
        if self.answers:
            return client.stream_chat([{"role": "user", "content": self.prompt}], **merged)
        return client.stream(self.prompt, **merged)


@dataclass(frozen=True, slots=True)
class SceneReport:
    """The result of a scene."""

    title: str
    """The scene's title."""
    plain: Generation
    """The request without drafters."""
    drafted: Generation
    """The same request with drafters."""
    changes: Sequence[Change]
    """The changes that were made while it ran."""

    @property
    def identical(self) -> bool:
        """Whether both gave the same tokens and the same text."""
        return self.plain.token_ids == self.drafted.token_ids and self.plain.text == self.drafted.text

    @property
    def seconds(self) -> float:
        """Time of the request with drafters, by the verifier's clock."""
        return self.drafted.usage.total_seconds

    @property
    def plain_seconds(self) -> float:
        """Time of the request without drafters, by the verifier's clock."""
        return self.plain.usage.total_seconds

    @property
    def speed_up(self) -> float:
        """Speed-up by the drafters."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the result as a JSON value."""
        speculation = self.drafted.speculation
        return {
            "title": self.title,
            "identical": self.identical,
            "tokens": len(self.drafted.token_ids),
            "steps": speculation.steps,
            "acceptance_rate": round(speculation.acceptance_rate, 4),
            "acceptance_length": round(speculation.acceptance_length, 4),
            "seconds": round(self.seconds, 4),
            "plain_seconds": round(self.plain_seconds, 4),
            "speed_up": round(self.speed_up, 4),
            "draft_tokens": speculation.draft_tokens,
            "accepted_tokens": speculation.accepted_tokens,
            "drafters": json_of(speculation.drafters),
            "seed": self.drafted.seed,
            "text": self.drafted.text,
        }
