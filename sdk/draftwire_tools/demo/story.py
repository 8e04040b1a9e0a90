"""The demo's story: each scene without drafters, and with drafters that are swapped and killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from draftwire._sync.client import Client
from draftwire._types.generation import Chunk, Generation
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import Speculation
from draftwire.cli.failure import Failure
from draftwire_tools.demo.scene import Change, Scene, SceneReport

WARM_UP_TOKENS = 8
LEAST_TOKENS = 100
"""Least tokens of a request that lasts long enough for its changes."""


class DemoScreen(Protocol):
    """Display of the story."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """Shows that something else is being done within the context."""

    def plain(self, title: str, tokens: int) -> AbstractContextManager[Callable[[int], None]]:
        """Shows a request without drafters; returns the callback for each number of new tokens."""

    def begin(self, prompt: str) -> None:
        """Shows the start of a request with drafters."""

    def chunk(self, chunk: Chunk) -> None:
        """Shows the tokens of a chunk."""

    def event(self, text: str) -> None:
        """Shows an event concerning the drafters."""


class Silence:
    """A screen that shows nothing."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """Shows nothing."""
        return nullcontext()

    def plain(self, title: str, tokens: int) -> AbstractContextManager[Callable[[int], None]]:
        """Shows nothing."""
        return nullcontext(lambda _: None)

    def begin(self, prompt: str) -> None:
        """Shows nothing."""

    def chunk(self, chunk: Chunk) -> None:
        """Shows nothing."""

    def event(self, text: str) -> None:
        """Shows nothing."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of the demo."""

    model: str
    """The target's name."""
    scenes: Sequence[SceneReport]
    """The result of each scene."""
    swaps: int
    """Swaps while requests ran."""
    kills: int
    """Drafters killed while requests ran."""

    @property
    def identical(self) -> bool:
        """Whether all scenes gave the same text with drafters as without."""
        return all(scene.identical for scene in self.scenes)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as a JSON value."""
        return {
            "model": self.model,
            "identical": self.identical,
            "swaps": self.swaps,
            "kills": self.kills,
            "requests": [scene.to_json() for scene in self.scenes],
        }


def tell(client: Client, model: str, scenes: Sequence[Scene], screen: DemoScreen) -> DemoReport:
    """Runs all scenes one after another. model: the target's name.

    Raises:
        Failure: the most tokens of a request were too few for its changes.
        DraftwireError: a call failed.
    """
    reports = [_play(client, scene, screen) for scene in scenes]
    events = [change.event.partition(" ")[0] for report in reports for change in report.changes]
    return DemoReport(model, reports, events.count("swapped"), events.count("killed"))


def _play(client: Client, scene: Scene, screen: DemoScreen) -> SceneReport:
    plainly: GenerateOptions = {"speculation": Speculation(enabled=False)}
    with screen.working("warming up"):
        _run(client, scene, {**plainly, "max_tokens": WARM_UP_TOKENS})
    with (
        screen.plain(scene.title, scene.options.get("max_tokens") or 1) as advance,
        scene.stream(client, plainly) as stream,
    ):
        for chunk in stream:
            advance(len(chunk.token_ids))
        plain = stream.result
    names = " and ".join(drafter.name for drafter in scene.drafters)
    with screen.working(f"attaching {names}" if names else "warming up"):
        for drafter in scene.drafters:
            client.drafters.attach(drafter.address, drafter.name)
        _run(client, scene, {"max_tokens": WARM_UP_TOKENS})
    screen.begin(f"{scene.prompt}\n\n" if scene.answers else scene.prompt)
    return SceneReport(scene.title, plain, *_drafted(client, scene, screen, len(plain.token_ids)))


def _run(client: Client, scene: Scene, options: GenerateOptions) -> None:
    with scene.stream(client, options) as stream:
        for _ in stream:
            pass


def _drafted(client: Client, scene: Scene, screen: DemoScreen, tokens: int) -> tuple[Generation, Sequence[Change]]:
    """Runs a request with drafters, and its changes meanwhile; returns its result, and those that were made. tokens:
    number of the output's tokens."""
    due = list(scene.changes)
    made = []
    running: tuple[Change, Future[object]] | None = None
    count = 0
    with ThreadPoolExecutor(1) as pool, scene.stream(client, {}) as stream:
        for chunk in stream:
            screen.chunk(chunk)
            count += len(chunk.token_ids)
            if running is not None and running[1].done():
                change, future = running
                running = None
                future.result()
                made.append(change)
                if change.event:
                    screen.event(change.event)
            if running is None and due and count >= tokens * due[0].share:
                running = due[0], pool.submit(due[0].make, client)
                due.pop(0)
        result = stream.result
    if running is not None:
        running[1].result()
    if result.finish_reason == "length" and (due or (running is not None and running[0].event)):
        raise Failure("the request ended before its drafters were swapped and killed; increase --max-tokens")
    return result, made  # an answer may be too short for all of them
