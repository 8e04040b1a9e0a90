"""Measures the token rate of running streams in buckets of 100 ms around swaps of drafters.

    python -m benchmarks.speed.hot_swap [--swaps 4] [--target-millions 400] [--out DIR] [--json]

Eight streams run against the bundled pair, inflated to a size at which verifying reads weights from memory. An early
checkpoint of the draft model drafts; the good one replaces it, then the early one again, and so on. The requests are
long enough to last from the first swap to the last, because a new prompt would delay all other streams. Tokens are
counted in buckets of 100 ms by arrival; for rates they are spread over the time since the stream's last ones, because a
step of all streams may take longer than a bucket.

For each swap the report has the steady rates before and after, the time until all sequences had moved, and the dip:
how far the rate falls below the lower of the two steady rates while sequences move and a while after, on average and in
the worst window. The worst window of equally long stretches without a swap shows how far the rate falls by itself.
Writes the numbers (hot_swap.json) and a plot (hot_swap.png).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.machine import machine
from benchmarks.harness.pair_options import add_size_options, cores
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import Gap, Job, StreamLoad
from benchmarks.speed.token_rate import BUCKET_SECONDS, TokenRate, moving_rate
from draftwire import AsyncClient
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

WARM_UP_SECONDS = 5.0
"""Seconds after the last stream has received its first tokens."""
AFTERMATH_SECONDS = 2.0
"""Seconds after a swap in which the dip is still measured."""
REQUEST_SECONDS = 600.0


@dataclass(frozen=True)
class SwapFigures:
    """Figures of one swap. Rates are in tokens per second, times in seconds after the first bucket."""

    old: str
    new: str
    start: float
    end: float
    moved_sequences: int
    rate_before: float
    rate_after: float
    dip: float
    """Missing share of the lower steady rate in the worst window; 0 if the rate was never below it."""
    dip_without_swap: float
    """The dip, measured in the steady stretch before the swap."""
    rate_between: float
    """Rate from the call until a while after its return."""

    @property
    def seconds(self) -> float:
        """Seconds until all sequences had moved and the old drafter was released."""
        return self.end - self.start

    @property
    def dip_on_average(self) -> float:
        """Missing share of the lower steady rate from the call until a while after its return."""
        return dip([self.rate_between], min(self.rate_before, self.rate_after))


def dip(rates: list[float], steady: float) -> float:
    """Returns how far the lowest of the rates is below the steady one, as a share of it."""
    return max(0.0, 1.0 - min(rates, default=steady) / steady) if steady else 0.0


class HotSwap:
    """The services, the streams and the swaps."""

    def __init__(self, options: argparse.Namespace, services: Services):
        self._options = options
        self._services = services
        self.rate = TokenRate(0.0)
        self.swaps: list[SwapFigures] = []
        self._begun = 0
        self._all_begun = asyncio.Event()

    async def run(self) -> None:
        """Runs the streams and the swaps."""
        options = self._options
        clock = asyncio.get_running_loop().time
        flags = ("--kv-slots", "16384")
        target = inflated(MODELS / "target", options.target_millions)
        verifier = self._services.verifier(target, *flags, cores=options.verifier_cores)
        drafters = {
            name: self._services.drafter(
                inflated(MODELS / model, options.draft_millions), *flags, cores=options.drafter_cores
            )
            for name, model in (("early", "draft-early"), ("good", "draft"))
        }
        address = await asyncio.to_thread(lambda: verifier.address)
        addresses = {name: await asyncio.to_thread(lambda s=service: s.address) for name, service in drafters.items()}
        names = {address: name for name, address in addresses.items()}
        async with AsyncClient(address, timeout=120.0) as client:
            await client.drafters.attach(addresses["early"])
            start = clock()
            self.rate = TokenRate(start)
            stop = asyncio.Event()
            load = StreamLoad(self._jobs(), options.streams, lambda number: AsyncClient(address))
            load.on_gap = self._count
            load.on_lost = lambda finding: self._all_begun.set()
            running = asyncio.create_task(load.run_until(stop), name="streams")
            try:
                await asyncio.wait_for(self._all_begun.wait(), REQUEST_SECONDS)
                if load.lost:
                    raise RuntimeError(f"a request failed: {load.lost[0].what}")
                await asyncio.sleep(WARM_UP_SECONDS + options.steady)
                old = addresses["early"]
                for _ in range(options.swaps):
                    new = next(other for other in addresses.values() if other != old)
                    before = clock()
                    swap = await client.drafters.swap(old, new)
                    after = clock()
                    await asyncio.sleep(AFTERMATH_SECONDS + options.steady)
                    self._note(names[old], names[new], start, before, after, swap.moved_sequences)
                    old = new
            finally:
                stop.set()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            if load.lost:
                raise RuntimeError(f"{len(load.lost)} requests failed, the first: {load.lost[0].what}")

    def _count(self, gap: Gap) -> None:
        self.rate.add(gap.start, gap.end, gap.tokens)
        self._begun += gap.first
        if self._begun == self._options.streams:
            self._all_begun.set()

    def _jobs(self) -> list[Job]:
        options = self._options
        return [
            Job(
                prompt,
                number,
                {
                    "temperature": options.temperature,
                    "ignore_eos": True,
                    "max_tokens": options.max_tokens,
                    "timeout": REQUEST_SECONDS,
                },
            )
            for number, prompt in enumerate(held_out_prompts(64))
        ]

    def _note(self, old: str, new: str, start: float, before: float, after: float, moved: int) -> None:
        steady, window = self._options.steady, self._options.window
        rate_before = self.rate.rate(before - steady, before)
        rate_after = self.rate.rate(after + AFTERMATH_SECONDS, after + AFTERMATH_SECONDS + steady)
        # A window that begins just before the swap may contain the whole dip.
        around = self.rate.smoothed(before - window, after + AFTERMATH_SECONDS, window)
        # As many windows from a steady stretch, so that the two minima are comparable.
        alone = self.rate.smoothed(before - steady, before, window)[: len(around)]
        figures = SwapFigures(
            old,
            new,
            round(before - start, 3),
            round(after - start, 3),
            moved,
            round(rate_before, 1),
            round(rate_after, 1),
            round(dip(around, min(rate_before, rate_after)), 4),
            round(dip(alone, rate_before), 4),
            round(self.rate.rate(before, after + AFTERMATH_SECONDS), 1),
        )
        self.swaps.append(figures)
        print(
            f"{old} -> {new}: {rate_before:.0f} -> {rate_after:.0f} tokens/s, {moved} sequences moved in "
            f"{figures.seconds:.2f} s, at {figures.rate_between:.0f} tokens/s: dip {figures.dip_on_average:.0%}, in "
            f"the worst window {figures.dip:.0%}, without a swap {figures.dip_without_swap:.0%}",
            file=sys.stderr,
            flush=True,
        )


def plot(hot_swap: HotSwap, window: float, title: str, path: Path) -> None:
    """Plots the buckets, the rate over the window, and the swaps."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 4.5), layout="constrained")
    buckets = hot_swap.rate.arrived
    axes.bar(
        [index * BUCKET_SECONDS for index in range(len(buckets))],
        [tokens / BUCKET_SECONDS for tokens in buckets],
        width=BUCKET_SECONDS,
        align="edge",
        color="#c9d4e3",
        label="100 ms",
    )
    smoothed = moving_rate(hot_swap.rate.spread, window)
    axes.plot(
        [index * BUCKET_SECONDS + window / 2 for index in range(len(smoothed))],
        smoothed,
        color="#1f4e8c",
        label=f"over {window:g} s",
    )
    for swap in hot_swap.swaps:
        axes.axvspan(swap.start, max(swap.end, swap.start + BUCKET_SECONDS), color="#d9822b", alpha=0.4)
        axes.text(
            swap.end, 0.97, f" {swap.old} to {swap.new}", transform=axes.get_xaxis_transform(), va="top", fontsize=8
        )
    axes.set(xlabel="seconds", ylabel="tokens per second", title=title)
    axes.set_ylim(bottom=0, top=1.6 * max(smoothed, default=1.0))
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs the measurement, writes the files and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=4)
    parser.add_argument("--steady", type=float, default=15.0, help="seconds of each steady stretch")
    parser.add_argument("--window", type=float, default=1.0, help="window of the dip, in seconds")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=1500)
    parser.add_argument("--temperature", type=float, default=0.8)
    add_size_options(parser)
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    parser.add_argument("--drafter-cores", type=cores, default=[1])
    parser.add_argument("--out", type=Path, help="where to write the files; default: a new temporary directory")
    add_report_options(parser)
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("hot_swap.py draws its plot with matplotlib, which is not installed: pip install matplotlib")
    matplotlib.use("Agg")
    out = options.out or Path(tempfile.mkdtemp(prefix="draftwire-hot-swap-"))
    out.mkdir(parents=True, exist_ok=True)
    with Services() as services:
        hot_swap = HotSwap(options, services)
        asyncio.run(hot_swap.run())
    pair = f"target {options.target_millions:g} M, drafts {options.draft_millions:g} M parameters"
    plot(hot_swap, options.window, f"{options.streams} streams, {pair}", out / "hot_swap.png")
    figures: dict[str, object] = {
        "pair": f"bundled, inflated: {pair}, bfloat16, 1 thread each",
        "cores": f"verifying on {options.verifier_cores}, drafting on {options.drafter_cores}",
        "streams": f"{options.streams}, temperature {options.temperature:g}, up to {options.max_tokens} tokens",
        "swaps": len(hot_swap.swaps),
        "tokens/s with the early draft": _rates(hot_swap, "early"),
        "tokens/s with the good draft": _rates(hot_swap, "good"),
        "seconds until all sequences moved": Spread.of([swap.seconds for swap in hot_swap.swaps]),
        "dip on average while they move": Spread.of([swap.dip_on_average for swap in hot_swap.swaps]),
        f"dip in the worst {options.window:g} s": Spread.of([swap.dip for swap in hot_swap.swaps]),
        "the same without a swap": Spread.of([swap.dip_without_swap for swap in hot_swap.swaps]),
        "files": str(out),
    }
    numbers = {
        "machine": machine(),
        "setting": {name: str(figures[name]) for name in ("pair", "cores", "streams")},
        "bucket_seconds": BUCKET_SECONDS,
        "tokens_arrived": hot_swap.rate.arrived,
        "tokens_spread": [round(tokens, 3) for tokens in hot_swap.rate.spread],
        "swaps": [asdict(swap) for swap in hot_swap.swaps],
    }
    (out / "hot_swap.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print_report("hot_swap", figures, options)


def _rates(hot_swap: HotSwap, drafter: str) -> Spread | str:
    """Returns the steady rates with a drafter: after each swap to it, and before the first swap from it."""
    rates = [swap.rate_after for swap in hot_swap.swaps if swap.new == drafter]
    rates += [swap.rate_before for swap in hot_swap.swaps[:1] if swap.old == drafter]
    return Spread.of(rates) if rates else "not used"


if __name__ == "__main__":
    main()
