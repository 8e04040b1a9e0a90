"""The demo's story: the same request without drafters, and with drafters that are swapped and killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from draftwire._sync.client import Client
from draftwire._types.drafter import Drafter, Swap
from draftwire._types.generation import Chunk, Generation
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import Speculation
from draftwire.cli.failure import Failure
from draftwire.cli.results import json_of

SWAP_AT = 0.5
"""Share of the tokens after which the drafters are swapped."""
KILL_AT = 0.8
"""Share of the tokens after which the drafter in use is killed."""
WARM_UP_TOKENS = 8
LEAST_TOKENS = 100
"""Least tokens of a request that lasts long enough for the swap and the kill."""


class DemoScreen(Protocol):
    """Display of the story."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """Shows that something else is being done within the context."""

    def plain(self, tokens: int) -> AbstractContextManager[Callable[[int], None]]:
        """Shows the request without drafters; returns the callback for each number of new tokens."""

    def begin(self, prompt: str) -> None:
        """Shows the start of the request with drafters."""

    def chunk(self, chunk: Chunk) -> None:
        """Shows the tokens of a chunk."""

    def event(self, text: str) -> None:
        """Shows an event concerning the drafters."""


class Silence:
    """A screen that shows nothing."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """Shows nothing."""
        return nullcontext()

    def plain(self, tokens: int) -> AbstractContextManager[Callable[[int], None]]:
        """Shows nothing."""
        return nullcontext(lambda _: None)

    def begin(self, prompt: str) -> None:
        """Shows nothing."""

    def chunk(self, chunk: Chunk) -> None:
        """Shows nothing."""

    def event(self, text: str) -> None:
        """Shows nothing."""


@dataclass(frozen=True, slots=True)
class DemoDrafter:
    """A drafter service of the demo."""

    name: str
    """The drafter's name in the pool."""
    address: str
    """The drafter's address."""
    kill: Callable[[], None]
    """Function that kills its process."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of the demo."""

    plain: Generation
    """The request without drafters."""
    drafted: Generation
    """The same request with drafters."""
    swaps: int
    """Swaps while it ran."""
    kills: int
    """Drafters killed while it ran."""

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
        """Returns the report as a JSON value."""
        speculation = self.drafted.speculation
        return {
            "identical": self.identical,
            "tokens": len(self.drafted.token_ids),
            "steps": speculation.steps,
            "acceptance_rate": round(speculation.acceptance_rate, 4),
            "acceptance_length": round(speculation.acceptance_length, 4),
            "seconds": round(self.seconds, 4),
            "plain_seconds": round(self.plain_seconds, 4),
            "speed_up": round(self.speed_up, 4),
            "swaps": self.swaps,
            "kills": self.kills,
            "draft_tokens": speculation.draft_tokens,
            "accepted_tokens": speculation.accepted_tokens,
            "drafters": json_of(speculation.drafters),
            "seed": self.drafted.seed,
            "text": self.drafted.text,
        }


def tell(
    client: Client, prompt: str, first: DemoDrafter, second: DemoDrafter, screen: DemoScreen, options: GenerateOptions
) -> DemoReport:
    """Runs the story: plainly, then with the first drafter, swapped for the second, which is killed near the end.

    Raises:
        Failure: the request ended too early for that.
        DraftwireError: a call failed.
    """
    tokens = options["max_tokens"] or 1
    plainly: GenerateOptions = {**options, "speculation": Speculation(enabled=False)}
    warm_up: GenerateOptions = {**plainly, "max_tokens": WARM_UP_TOKENS}
    with screen.working("warming up"):
        client.generate(prompt, **warm_up)
    with screen.plain(tokens) as advance, client.stream(prompt, **plainly) as stream:
        for chunk in stream:
            advance(len(chunk.token_ids))
        plain = stream.result

    warm_up = {**options, "max_tokens": WARM_UP_TOKENS}
    with screen.working(f"attaching {first.name}"):
        client.drafters.attach(first.address, first.name)
        client.generate(prompt, **warm_up)
    attach: Future[Drafter] | None = None
    swap: Future[Swap] | None = None
    swapped = killed = False
    count = 0
    screen.begin(prompt)
    with ThreadPoolExecutor(1) as pool, client.stream(prompt, **options) as stream:
        for chunk in stream:
            screen.chunk(chunk)
            count += len(chunk.token_ids)
            if attach is None:
                attach = pool.submit(client.drafters.attach, second.address, second.name)
            elif swap is None and count >= tokens * SWAP_AT:
                swap = pool.submit(client.drafters.swap, first.name, second.name)
            elif swap is not None and swap.done() and not swapped:
                swap.result()
                swapped = True
                screen.event(f"swapped {first.name} for {second.name}")
            elif swapped and not killed and count >= tokens * KILL_AT:
                second.kill()
                killed = True
                screen.event(f"killed {second.name}")
        drafted = stream.result
    for call in (attach, swap):
        if call is not None:
            call.result()
    if not killed:
        raise Failure("the request ended before its drafters were swapped and killed; increase --max-tokens")
    return DemoReport(plain, drafted, swaps=int(swapped), kills=int(killed))
