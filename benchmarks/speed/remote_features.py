"""Measures an EAGLE-3 drafter in the verifier and in a service, at round trips of 0 to 20 ms.

    python -m benchmarks.speed.remote_features --eagle DIR [--draft DIR] [--round-trips 0,1,5,20]
        [--prompt-tokens 1800] [--runs 5]

The drafter was trained for the bundled target (`draftwire train eagle3`) and is grown with it (models/eagle_growth.py).
A proxy between the services delays every byte by half the round trip, and counts the bytes. Held-out prompts are
decoded greedily, one at a time; plain decoding, the drafter in the verifier, the one in a service with 16-bit features,
one with 8-bit features, and a draft model in the verifier and in a service take turns from prompt to prompt.

Then a long prompt is read, without the prefix cache, with and without the drafter: the time of the first token, and the
bytes that its features take. Behind the same prompt the drafter is swapped in mid-request for another connection to its
service, which gets the features of the whole text again: the bytes, and the time until the target has verified the
first of its nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness.arrangements import Arrangement, Comparison, Measured, measure, measure_and_report
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, pair_figures
from benchmarks.harness.services import Services, started
from benchmarks.harness.tcp_proxy import TcpProxy
from benchmarks.speed.rtt import numbers
from draftwire import AsyncClient, Speculation
from draftwire_tools.spread import Spread
from models.eagle_growth import inflate_eagle
from tests.harness.checkout import MODELS

PLAIN_NAME, LOCAL, INT8 = "plain", "in the verifier", "in a service, 8-bit features"
DRAFT, LOCAL_DRAFT = "draft model in a service", "draft model in the verifier"
_SLOTS = ("--kv-slots", "8192")
_SWAP_TOKENS = 200
_SETTLING_SECONDS = 0.5
"""Time in which the features of a long prompt have arrived, after its first token."""


def at(milliseconds: float) -> str:
    """Returns the name of the drafter in a service at a round trip."""
    return f"in a service, {milliseconds:g} ms"


class LongPrompts:
    """Measurements with a long prompt."""

    def __init__(self) -> None:
        self.first_tokens: dict[str, list[float]] = {}
        """Seconds until the first token of each run, by arrangement."""
        self.tokens = 0
        self.bytes = 0
        """Bytes to the drafter for one prompt, verdicts and openings included."""
        self.swaps: list[float] = []
        """Seconds from each swap to the first verified node of the new drafter."""
        self.swap_bytes: list[int] = []
        """Bytes to the new drafter in that time."""

    async def run(self, client: AsyncClient, prompts: list[list[int]], remote: str, proxy: TcpProxy) -> None:
        """Reads each prompt once with each arrangement, by turns."""
        ways = {PLAIN_NAME: Speculation(enabled=False), remote: Speculation(drafter=remote)}
        for prompt in prompts:
            for name, speculation in ways.items():
                before = proxy.up.carried
                result = await client.generate(prompt, max_tokens=2, speculation=speculation, prefix_cache=False)
                self.first_tokens.setdefault(name, []).append(result.usage.first_token_seconds)
                await asyncio.sleep(_SETTLING_SECONDS)
                if name == remote:
                    self.bytes = proxy.up.carried - before
            self.tokens = len(prompt)

    async def swap(self, client: AsyncClient, prompts: list[list[int]], remote: str, proxy: TcpProxy) -> None:
        """Swaps the drafter in mid-request, once for each prompt. proxy: in front of the new one, which is not attached
        otherwise."""
        old = next(each.address for each in await client.drafters.list() if each.name == remote)
        for number, prompt in enumerate(prompts):
            new = f"swapped {number}"
            speculation = Speculation(drafter=remote, planning="always")
            await client.drafters.attach(proxy.address, new)
            async with client.stream(
                prompt, max_tokens=_SWAP_TOKENS, ignore_eos=True, speculation=speculation, prefix_cache=False
            ) as stream:
                async for _ in stream:
                    break
                began, before = time.perf_counter(), proxy.up.carried
                await client.drafters.swap(remote, new)
                async for _ in stream:
                    if any(each.name == new and each.draft_tokens for each in await client.drafters.list()):
                        break
                self.swaps.append(time.perf_counter() - began)
                self.swap_bytes.append(proxy.up.carried - before)
            await client.drafters.attach(old, remote)
            await client.drafters.detach(new)

    def figures(self, remote: str) -> dict[str, object]:
        """Returns the figures to print."""
        plain, drafted = self.first_tokens[PLAIN_NAME], self.first_tokens[remote]
        return {
            f"first token of {self.tokens} tokens, plain, s": Spread.of(plain),
            f"first token of {self.tokens} tokens, {remote}, s": Spread.of(drafted),
            "first token with the drafter / plain": Spread.ratio(drafted, plain),
            f"bytes to the drafter for a prompt of {self.tokens} tokens": self.bytes,
            f"swap behind {self.tokens} tokens, to the first verified node, s": Spread.of(self.swaps),
            f"swap behind {self.tokens} tokens, bytes to the new drafter": max(self.swap_bytes),
        }


class Benchmark:
    """One run of the benchmark, and what it counts beside the rates."""

    def __init__(self) -> None:
        self.long = LongPrompts()
        self.carried: dict[str, int] = {}
        """Bytes to the drafter in the measured runs and their warm-up, by arrangement."""
        self.width = 0

    async def run(self, options: argparse.Namespace, services: Services) -> Measured:
        """Runs all arrangements."""
        target = inflated(MODELS / "target", options.target_millions)
        draft = inflated(options.draft, options.draft_millions)
        hidden = int(json.loads((target / "config.json").read_text(encoding="utf-8"))["hidden_size"])
        self.width = hidden
        async with AsyncExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            inflate_eagle(options.eagle, place / "eagle", hidden)
            flags, cores = ("--target", str(target), *_SLOTS), options.drafter_cores
            eagle = partial(services.drafter, place / "eagle", *flags, cores=cores)
            (verifier,), drafters = await asyncio.gather(
                started([lambda: services.verifier(target, *_SLOTS, cores=options.verifier_cores)]),
                started(
                    [
                        eagle,
                        partial(eagle, "--feature-dtype", "int8"),
                        lambda: services.drafter(draft, *_SLOTS, cores=cores),
                    ]
                ),
            )
            client = await stack.enter_async_context(AsyncClient(verifier, timeout=600.0))
            await client.drafters.attach(f"local:eagle3?model={place / 'eagle'}", LOCAL)
            await client.drafters.attach(f"local:draft?model={draft}", LOCAL_DRAFT)
            proxies: dict[str, TcpProxy] = {}
            for name, milliseconds, address in (
                *((at(each), each, drafters[0]) for each in options.round_trips),
                (INT8, options.round_trips[0], drafters[1]),
                (DRAFT, options.round_trips[0], drafters[2]),
            ):
                proxies[name] = await stack.enter_async_context(TcpProxy(address))
                proxies[name].set_delay(milliseconds / 2e3)
                await client.drafters.attach(proxies[name].address, name)
            ways = [Arrangement(PLAIN_NAME, client, PLAIN_NAME)]
            ways += [
                Arrangement(name, client, PLAIN_NAME, Speculation(drafter=name))
                for name in (LOCAL, LOCAL_DRAFT, *proxies)
            ]
            prompts = [[await client.tokenize(text)] for text in held_out_prompts(options.prompts)]
            measured = await measure(
                [Comparison(ways, prompts, options.max_tokens)], options.runs, verbose=options.verbose
            )
            self.carried = {name: proxy.up.carried for name, proxy in proxies.items()}
            nearest = at(options.round_trips[0])
            text = [token for (prompt,) in prompts * 100 for token in prompt]
            length = options.prompt_tokens
            long = [text[start : start + length] for start in range(0, 7 * options.runs, 7)]
            await self.long.run(client, long, nearest, proxies[nearest])
            fresh = await stack.enter_async_context(TcpProxy(drafters[0]))
            await self.long.swap(client, long, nearest, fresh)
            return measured

    def figures(self, measured: Measured, options: argparse.Namespace) -> dict[str, object]:
        """Returns the figures to print."""
        found: dict[str, object] = pair_figures(options) | {
            "requests": f"{options.prompts} held-out prompts, {options.max_tokens} tokens, one at a time, greedy",
            "features": f"{self.width} elements: {2 * self.width} bytes in bfloat16, {self.width + 4} in 8 bits",
        }
        for name in measured.batches:
            found[f"{name}, tokens/s"] = measured.rate(name)
            if name != PLAIN_NAME:
                found[f"{name} / plain"] = measured.ratio(name, PLAIN_NAME)
                found[f"{name}, tokens a step"] = round(measured.acceptance_length(name), 2)
        found[f"{LOCAL} / {LOCAL_DRAFT}"] = measured.ratio(LOCAL, LOCAL_DRAFT)
        for milliseconds in options.round_trips:
            found[f"{at(milliseconds)} / {LOCAL}"] = measured.ratio(at(milliseconds), LOCAL)
        tokens = {
            name: sum(len(batch.token_ids[0]) for run in measured.batches[name] for batch in run)
            for name in self.carried
        }
        for name, count in self.carried.items():
            found[f"{name}, bytes to the drafter per generated token"] = round(count / tokens[name])
        return found | self.long.figures(at(options.round_trips[0])) | measured.figures()


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eagle", type=Path, required=True, help="EAGLE-3 drafter trained for the bundled target")
    parser.add_argument(
        "--draft",
        type=Path,
        default=MODELS / "draft",
        help="draft model of the bundled target, which is inflated; by default the bundled one",
    )
    parser.add_argument("--round-trips", type=numbers, default=[0, 1, 5, 20], help="in milliseconds, comma-separated")
    parser.add_argument("--prompt-tokens", type=int, default=1800, help="length of the long prompts")
    add_pair_options(parser)
    add_run_options(parser, prompts=5, max_tokens=64)
    options = parser.parse_args()
    benchmark = Benchmark()
    sys.exit(measure_and_report("remote_features", benchmark.run, benchmark.figures, options))


if __name__ == "__main__":
    main()
