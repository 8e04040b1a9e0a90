"""Measures the first token of long prompts, with and without a drafter that reads the target's hidden states.

    python -m benchmarks.speed.long_prompts --eagle DIR [--prompt-tokens 8192] [--round-trips 0,1] [--runs 3]

The target and the EAGLE-3 drafter are those of `remote_features`, with a window of 16384 tokens instead of their own:
their outputs at late positions are nonsense, which costs the same time. Each prompt is read once without a drafter,
once with the drafter in the verifier, and once with it in a service at each round trip, by turns and without the prefix
cache. The service gets the features while the target still computes the prompt; the next request waits until the
service has read them all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, pair_figures
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services, started
from benchmarks.harness.tcp_proxy import TcpProxy
from benchmarks.speed.remote_features import LOCAL, PLAIN_NAME, at
from benchmarks.speed.rtt import numbers
from draftwire import AsyncClient, Speculation
from draftwire_tools.spread import Spread
from models.eagle_growth import inflate_eagle
from tests.harness.checkout import MODELS

_WINDOW = 16384
_SLOTS = ("--kv-slots", str(_WINDOW))
_SETTLING_SECONDS = 0.5
"""Time without a byte to the drafter after which it is taken to have everything."""


def widened(model: Path, place: Path) -> Path:
    """Returns a copy of a model, in `place`, whose configuration has the longer window."""
    place.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (place / file.name).symlink_to(file)
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config.get("transformer_layer_config", config)["max_position_embeddings"] = _WINDOW
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return place


async def settled(proxies: list[TcpProxy]) -> None:
    """Returns once no proxy carries bytes."""
    carried, quiet = -1, False
    while not quiet:
        await asyncio.sleep(_SETTLING_SECONDS)
        before, carried = carried, sum(proxy.up.carried + proxy.down.carried for proxy in proxies)
        quiet = carried == before


async def run(options: argparse.Namespace, services: Services) -> dict[str, object]:
    """Reads the prompts; returns the figures."""
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = widened(inflated(MODELS / "target", options.target_millions), place / "target")
        hidden = json.loads((target / "config.json").read_text(encoding="utf-8"))["hidden_size"]
        inflate_eagle(options.eagle, place / "grown", hidden)
        eagle = widened(place / "grown", place / "eagle")
        flags = ("--target", str(target), *_SLOTS)
        (verifier,), (drafter,) = await asyncio.gather(
            started([lambda: services.verifier(target, *_SLOTS, cores=options.verifier_cores)]),
            started([lambda: services.drafter(eagle, *flags, cores=options.drafter_cores)]),
        )
        client = await stack.enter_async_context(AsyncClient(verifier, timeout=600.0))
        await client.drafters.attach(f"local:eagle3?model={eagle}", LOCAL)
        proxies: dict[str, TcpProxy] = {}
        for milliseconds in options.round_trips:
            proxy = await stack.enter_async_context(TcpProxy(drafter))
            proxy.set_delay(milliseconds / 2e3)
            await client.drafters.attach(proxy.address, at(milliseconds))
            proxies[at(milliseconds)] = proxy
        ways = {PLAIN_NAME: Speculation(enabled=False)}
        ways |= {name: Speculation(drafter=name) for name in (LOCAL, *proxies)}
        text = [token for prompt in held_out_prompts(100) for token in await client.tokenize(prompt)]
        text *= 1 + options.prompt_tokens // len(text)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        outputs: dict[int, set[tuple[int, ...]]] = {}
        for number in range(options.runs):
            prompt = text[7 * number :][: options.prompt_tokens]
            for name, speculation in ways.items():
                result = await client.generate(
                    prompt, max_tokens=options.max_tokens, speculation=speculation, prefix_cache=False, temperature=0.0
                )
                seconds[name].append(result.usage.first_token_seconds)
                outputs.setdefault(number, set()).add(tuple(result.token_ids))
                if options.verbose:
                    print(f"{name:24} {seconds[name][-1]:.3f} s", file=sys.stderr)
                await settled(list(proxies.values()))
    plain = seconds[PLAIN_NAME]
    ratios = {
        f"{name}: first token / plain": Spread.ratio(found, plain)
        for name, found in seconds.items()
        if name != PLAIN_NAME
    }
    return (
        pair_figures(options)
        | {"requests": f"{options.runs} prompts of {options.prompt_tokens} tokens, {options.max_tokens} tokens, greedy"}
        | {f"{name}: first token, s": Spread.of(found) for name, found in seconds.items()}
        | ratios
        | {"differing": sum(len(found) - 1 for found in outputs.values())}
    )


def main() -> int:
    """Reads the prompts and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eagle", type=Path, required=True, help="EAGLE-3 drafter trained for the bundled target")
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--round-trips", type=numbers, default=[0, 1], help="in milliseconds, comma-separated")
    add_pair_options(parser)
    add_run_options(parser, max_tokens=4)
    options = parser.parse_args()
    with Services(threads=1) as services:
        figures = asyncio.run(run(options, services))
    print_report("long_prompts", figures, options)
    return 1 if figures["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
