"""Measures where a step's time goes in the verifier and in the drafter, from planning to waiting.

    python -m benchmarks.speed.profile_step [--batches 1,16] [--temperature 0.8] [--runs 5] [--json]

Held-out prompts are continued, --batches of them side by side, in turns plainly and with a drafter. Both services
always count the seconds of their engine's thread by part, and report them by GetModelInfo. Each is read once when all
requests of a batch decode and once when the first of them ends; a figure is the difference divided by the steps in
between.

The time outside the forward passes is the CPU time of the engine's thread around them, plus that of the event loop,
which shares its core. Parts are wall-clock times: they include the engine's thread waiting while the loop holds
Python's interpreter lock, or the core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, counts, pair_figures
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services, started
from draftwire import AsyncClient, BatchOptions, Speculation, StepTimes
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

GOALS = {1: 1.5, 16: 6.0}
"""Goal for a verifier's step outside the forward pass: most milliseconds, by batch size."""
_SPECULATIONS = {"plain": Speculation(enabled=False), "drafted": Speculation()}


@dataclass
class Decoding:
    """Requests side by side, measured only while all of them decode."""

    waiting: int
    """Number of requests that have no token yet."""
    all_decode: asyncio.Event = field(default_factory=asyncio.Event)
    one_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(
        self, client: AsyncClient, prompt: Sequence[int], seed: int, options: BatchOptions, speculation: Speculation
    ) -> None:
        """Runs one of the requests."""
        began = False
        async with client.stream(prompt, seed=seed, ignore_eos=True, speculation=speculation, **options) as stream:
            async for _ in stream:
                if not began:
                    began = True
                    self.waiting -= 1
                    if not self.waiting:
                        self.all_decode.set()
        self.one_ended.set()


Readings = dict[str, StepTimes]
"""Step times by service."""


async def step_ms(
    client: AsyncClient,
    read: Callable[[], Awaitable[Readings]],
    prompts: Sequence[Sequence[int]],
    options: BatchOptions,
    speculation: Speculation,
) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of a step while all requests decode, by service and part. Raises ValueError if they
    never do."""
    decoding = Decoding(len(prompts))
    async with asyncio.TaskGroup() as group:
        for seed, prompt in enumerate(prompts):
            group.create_task(decoding.run(client, prompt, seed, options, speculation))
        await decoding.all_decode.wait()
        if decoding.one_ended.is_set():
            raise ValueError(f"{len(prompts)} requests never ran all at once: they need more tokens")
        first = await read()
        await decoding.one_ended.wait()
        last = await read()
    return {name: difference(first[name], last[name]) for name in first}


def difference(first: StepTimes, last: StepTimes) -> dict[str, float]:
    """Returns the milliseconds of a step between two readings by part, and those outside the forward pass; empty
    without a step."""
    steps = last.steps - first.steps
    if not steps:
        return {}
    before, after = asdict(first), asdict(last)
    parts = {part: 1e3 * (after[part] - before[part]) / steps for part in after if part != "steps"}
    return parts | {"outside forward": parts["cpu_around_forward"] + parts["event_loop"]}


async def measure(options: argparse.Namespace, services: Services) -> dict[str, list[dict[str, float]]]:
    """Returns step times, run by run, by service, batch and arrangement."""
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)
    flags = ("--kv-slots", str(max(options.batches) * (options.prompt_tokens + options.max_tokens + 64) + 1024))
    (address,), (drafter,) = await asyncio.gather(
        started([lambda: services.verifier(target, *flags, cores=options.verifier_cores)]),
        started([lambda: services.drafter(draft, *flags, cores=options.drafter_cores)]),
    )
    measured: dict[str, list[dict[str, float]]] = {}
    async with AsyncClient(address, timeout=600.0) as client:
        await client.drafters.attach(drafter, "drafter")

        async def read() -> Readings:
            return {
                "verifier": (await client.model_info()).engine.times,
                "drafter": (await client.drafters.load_state(drafter)).times,
            }

        texts = [await client.tokenize(text) for text in held_out_prompts(max(options.batches))]
        prompts = [text[: options.prompt_tokens] for text in texts]
        asked: BatchOptions = {"max_tokens": options.max_tokens, "temperature": options.temperature}
        for run in range(
            -1, options.runs
        ):  # the first run, in which the verifier learns the drafter's worth, is not counted
            for batch in options.batches:
                names = list(_SPECULATIONS) if run % 2 else list(reversed(_SPECULATIONS))
                for name in names:
                    found = await step_ms(client, read, prompts[:batch], asked, _SPECULATIONS[name])
                    for service, parts in found.items():
                        if run >= 0 and parts:
                            measured.setdefault(f"{service}, batch {batch}, {name}", []).append(parts)
                            if options.verbose:
                                print(f"run {run}, {service}, batch {batch}, {name}: {parts}", file=sys.stderr)
    return measured


def figures(measured: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"{options.prompt_tokens} tokens of held-out prompts, {options.max_tokens} tokens more, "
        f"temperature {options.temperature:g}",
        "figures": "milliseconds a step",
    }
    for service in ("verifier", "drafter"):
        for batch in options.batches:
            for name in _SPECULATIONS:
                row = f"{service}, batch {batch}, {name}"
                runs = measured.get(row, [])
                for part in runs[0] if runs else ():
                    goal = GOALS.get(batch) if (service, part) == ("verifier", "outside forward") else None
                    said = f"{row}, {part}" + (f" (goal: at most {goal:g})" if goal else "")
                    found[said] = Spread.of([parts[part] for parts in runs])
    return found


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batches", type=counts, default=[1, 16], help="numbers of concurrent requests, comma-separated"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    add_pair_options(parser)
    add_run_options(parser, max_tokens=128)
    options = parser.parse_args()
    with Services() as services:
        measured = asyncio.run(measure(options, services))
    print_report("profile_step", figures(measured, options), options)


if __name__ == "__main__":
    main()
