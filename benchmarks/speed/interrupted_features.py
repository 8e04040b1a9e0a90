"""Measures what preemption, and resumption at another verifier, cost a drafter that reads the target's hidden states.

    python -m benchmarks.speed.interrupted_features --eagle DIR [--prompt-tokens 1700] [--runs 3]

Models and services are those of `remote_features`, with the drafter in a service that two verifiers share. Two long
prompts at a verifier without room for both outputs have one of them preempted. The same prompt then runs there alone,
and at one of both verifiers whose connection is cut halfway. Measured are the time and the bytes until the drafter's
next accepted token, and the tokens a step from there on, beside those of the same part of the text without an
interruption. What a swap costs is in `remote_features`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, pair_figures
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services, started
from benchmarks.harness.tcp_proxy import TcpProxy
from draftwire import AsyncClient, Speculation
from draftwire_tools.spread import Spread
from models.eagle_growth import inflate_eagle
from tests.harness.checkout import MODELS

_NAME = "drafter"
_TREE = 64
"""KV slots that a sequence needs beside its tokens."""
TOKENS = 100
"""Tokens of each output."""


@dataclass(frozen=True)
class _Step:
    """One verification step of a request."""

    at: float
    tokens: int
    drafted: bool
    """Whether any token was the drafter's."""
    carried: int
    """Bytes to the drafter until then."""


@dataclass
class _Kind:
    """The measurements of one kind of interruption."""

    first_tokens: list[float] = field(default_factory=list)
    """Seconds from the interruption, or the end of what held the request up, to its next token."""
    drafted: list[float] = field(default_factory=list)
    """Seconds to the drafter's next accepted token."""
    bytes: list[int] = field(default_factory=list)
    """Bytes to the drafter until then."""
    after: list[float] = field(default_factory=list)
    """Tokens a step behind the interruption."""
    undisturbed: list[float] = field(default_factory=list)
    """Tokens a step in the same part of the same text without an interruption."""

    def add(self, steps: list[_Step], index: int, since: float, carried: int, alone: list[_Step]) -> None:
        """Adds a request whose step `index` was the first one behind an interruption.

        since, carried: time, and bytes to the drafter, when it could go on. alone: the same request without it.
        """
        again = next(step for step in steps[index:] if step.drafted)
        self.first_tokens.append(steps[index].at - since)
        self.drafted.append(again.at - since)
        self.bytes.append(again.carried - carried)
        place = sum(step.tokens for step in steps[: index + 1])
        self.after.append(_rate(steps, place))
        self.undisturbed.append(_rate(alone, place))

    def figures(self, name: str) -> dict[str, object]:
        """Returns the figures to print."""
        return {
            f"{name}, to the next token, s": Spread.of(self.first_tokens),
            f"{name}, to the next accepted draft token, s": Spread.of(self.drafted),
            f"{name}, bytes to the drafter until then": max(self.bytes),
            f"{name}, tokens a step afterwards": Spread.of(self.after),
            f"{name}, tokens a step there without it": Spread.of(self.undisturbed),
        }


class Interruptions:
    """Interrupts requests with long prompts, one after another."""

    def __init__(self, carried: Callable[[], int]):
        """carried: returns the bytes to the drafter so far."""
        self._speculation = Speculation(drafter=_NAME, planning="always")
        self._carried = carried
        self._preempted, self._resumed = _Kind(), _Kind()
        self._tokens = 0

    async def run(self, tight: AsyncClient, lines: dict[str, TcpProxy], prompts: list[list[int]]) -> None:
        """Runs each prompt beside another one at a verifier without room for both outputs; alone there; and at one
        of two verifiers, whose connection is cut halfway.

        lines: proxies in front of both verifiers, by address.
        """
        for prompt in prompts:
            both = [prompt, prompt[1:] + prompt[:1]]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._follow(tight, text, lambda _: None)) for text in both]
            traces = [each.result() for each in running]
            gaps = [max((b.at - a.at, at) for at, (a, b) in enumerate(pairwise(t), 1)) for t in traces]
            victim = gaps.index(max(gaps))
            steps, index, end = traces[victim], gaps[victim][1], traces[1 - victim][-1]
            if end.at > steps[index].at:
                raise RuntimeError("no request waited for the other one: there was room for both")
            alone = await self._follow(tight, both[victim], lambda _: None)
            self._preempted.add(steps, index, end.at, end.carried, alone)
            await self._resume(lines, both[victim], alone)
            self._tokens = len(prompt)

    async def _resume(self, lines: dict[str, TcpProxy], prompt: list[int], alone: list[_Step]) -> None:
        left, cut_at = TOKENS // 2, _Step(0.0, 0, False, 0)
        async with AsyncClient(tuple(lines), timeout=600.0) as client:

            def cut_halfway(tokens: int) -> None:
                nonlocal left, cut_at
                left -= tokens
                if left <= 0 and not cut_at.at:
                    busiest = max(client.verifiers, key=lambda each: each.in_flight)
                    cut_at = _Step(time.perf_counter(), 0, False, self._carried())
                    lines[busiest.address].cut()

            steps = await self._follow(client, prompt, cut_halfway)
        index = next(at for at, step in enumerate(steps) if step.at > cut_at.at)
        self._resumed.add(steps, index, cut_at.at, cut_at.carried, alone)

    async def _follow(self, client: AsyncClient, prompt: list[int], on_tokens: Callable[[int], None]) -> list[_Step]:
        steps: list[_Step] = []
        options = {"max_tokens": TOKENS, "ignore_eos": True, "prefix_cache": False, "temperature": 0.0}
        async with client.stream(prompt, speculation=self._speculation, **options) as stream:  # type: ignore[arg-type]
            async for chunk in stream:
                if chunk.token_ids:
                    count, drafted = len(chunk.token_ids), any(chunk.sources)
                    steps.append(_Step(time.perf_counter(), count, drafted, self._carried()))
                    on_tokens(count)
        return steps

    def figures(self) -> dict[str, object]:
        """Returns the figures to print."""
        behind = f"behind {self._tokens} tokens"
        return self._preempted.figures(f"preempted {behind}") | self._resumed.figures(
            f"resumed at another verifier {behind}"
        )


def _rate(steps: list[_Step], place: int) -> float:
    """Returns the tokens a step behind the first `place` tokens of an output."""
    counted = 0
    behind: list[int] = []
    for step in steps:
        if counted >= place:
            behind.append(step.tokens)
        counted += step.tokens
    return sum(behind) / len(behind)


async def run(options: argparse.Namespace, services: Services) -> dict[str, object]:
    """Runs everything; returns the figures."""
    target = inflated(MODELS / "target", options.target_millions)
    hidden = int(json.loads((target / "config.json").read_text(encoding="utf-8"))["hidden_size"])
    slots = str(2 * options.prompt_tokens + TOKENS + _TREE)
    async with AsyncExitStack() as stack:
        eagle = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "eagle"
        inflate_eagle(options.eagle, eagle, hidden)
        verifiers, (drafter,) = await asyncio.gather(
            started([lambda: services.verifier(target, "--kv-slots", slots, cores=options.verifier_cores)] * 2),
            started([lambda: services.drafter(eagle, "--target", str(target), cores=options.drafter_cores)]),
        )
        near = await stack.enter_async_context(TcpProxy(drafter))
        lines: dict[str, TcpProxy] = {}
        clients: list[AsyncClient] = []
        for address in verifiers:
            client = await stack.enter_async_context(AsyncClient(address, timeout=600.0))
            await client.drafters.attach(near.address, _NAME)
            clients.append(client)
            line = await stack.enter_async_context(TcpProxy(address))
            lines[line.address] = line
        text = [token for prompt in held_out_prompts(100) for token in await clients[0].tokenize(prompt)]
        prompts = [text[start : start + options.prompt_tokens] for start in range(0, 7 * options.runs, 7)]
        interruptions = Interruptions(lambda: near.up.carried)
        await interruptions.run(clients[0], lines, prompts)
    return (
        pair_figures(options)
        | {
            "requests": f"{options.runs} prompts of {options.prompt_tokens} tokens, {TOKENS} tokens, greedy",
            "features": f"{hidden} elements, {2 * hidden} bytes",
        }
        | interruptions.figures()
    )


def main() -> int:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eagle", type=Path, required=True, help="EAGLE-3 drafter trained for the bundled target")
    parser.add_argument("--prompt-tokens", type=int, default=1700)
    parser.add_argument("--runs", type=int, default=3)
    add_pair_options(parser)
    add_report_options(parser)
    options = parser.parse_args()
    with Services(threads=1) as services:
        figures = asyncio.run(run(options, services))
    print_report("interrupted_features", figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
