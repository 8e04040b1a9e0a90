"""Measures one drafter shared by two verifiers, one with a single request and one with eight.

    python -m benchmarks.scale.shared_drafter [--seconds 20] [--json]

Each verifier repeatedly continues held-out prompts. The tokens per second of both are counted, with the drafter's rows
and nodes for each:

- alone: only the verifier with a single request has work;
- first come: rows go to the sequences that rank best, KV slots to those that came first (stand_ins/shaped_drafter.py);
- shares, 1:1 and 3:1: by weight; in the latter the single request's verifier has three times the weight.

First there are KV slots for all, then slots for `--scarce-sequences` long requests. Services and requests are real, and
the models are paced (stand_ins/pace.py): a step takes a given time and little processor time, as if each service had
its own device. Every output is compared with plain decoding's. Finally, without services, the processor time that
dividing a step costs the drafter is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.pair_options import cores
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import Job, StreamLoad, jobs_of
from draftwire import AsyncClient
from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc
from draftwire_core.engine.drafters.model.step_shares import StepShares
from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.kv.fair_shares import FairRows, ServedVerifier
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import TokenTree
from draftwire_tools.check.output import Output
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

SHAPED = "benchmarks.harness.stand_ins.shaped_drafter"
PACED = "benchmarks.harness.stand_ins.paced_verifier"
ONE, MANY = "one", "many"
STREAMS = {ONE: 1, MANY: 8}
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Arrangement:
    """One way of sharing the drafter."""

    name: str
    flags: tuple[str, ...] = ()
    working: tuple[str, ...] = (ONE, MANY)


ARRANGEMENTS = (
    Arrangement("alone", working=(ONE,)),
    Arrangement("first come", ("--first-come",)),
    Arrangement("shares 1:1"),
    Arrangement("shares 3:1", flags=("--verifier-weight", f"{ONE}=3")),
)


@dataclass(frozen=True)
class Tokens:
    """A token for each verifier, and the file of tokens that the drafter accepts."""

    accepted: Path
    shown: dict[str, Path]

    @classmethod
    def write(cls, directory: Path) -> Tokens:
        """Writes the files."""
        tables, shown = [], {}
        for name in (ONE, MANY):
            secret = secrets.token_hex(16)
            digest = hashlib.sha256(secret.encode()).hexdigest()
            tables.append(f'[{name}]\nsha256 = "{digest}"\nroles = ["draft", "admin"]\n')
            shown[name] = directory / f"{name}.token"
            shown[name].write_text(secret)
        accepted = directory / "accepted.toml"
        accepted.write_text("\n".join(tables))
        return cls(accepted, shown)


class Load:
    """The requests of one verifier, and their counts while they are measured."""

    def __init__(self, address: str, jobs: Sequence[Job], expected: Sequence[Output], streams: int):
        self._counted_from = float("inf")
        self.tokens = 0
        self.load = StreamLoad(
            jobs, streams, lambda _: AsyncClient(address), expected, on_gap=lambda gap: self._add(gap.end, gap.tokens)
        )

    def count(self) -> None:
        """Starts counting."""
        self._counted_from = asyncio.get_running_loop().time()

    def _add(self, at: float, tokens: int) -> None:
        if at >= self._counted_from:
            self.tokens += tokens


async def shares_of(address: str, token: str) -> dict[str, drafter_service_pb2.VerifierShare]:
    """Returns the drafter's report on its verifiers."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = drafter_service_pb2_grpc.DrafterServiceStub(channel)
        answer = await stub.GetModelInfo(
            drafter_service_pb2.DrafterServiceGetModelInfoRequest(),
            metadata=(("authorization", f"Bearer {token}"),),
            timeout=_TIMEOUT,
        )
    return {each.name: each for each in answer.status.verifiers}


async def measured(
    options: argparse.Namespace,
    services: Services,
    arrangement: Arrangement,
    slots: int,
    verifiers: dict[str, str],
    jobs: dict[str, list[Job]],
    expected: dict[str, list[Output]],
    tokens: Tokens,
) -> tuple[str, int]:
    """Measures one arrangement; returns its figures, and how many outputs differ or were lost."""
    pace = ("--step-ms", str(options.draft_step_ms), "--row-ms", str(options.draft_row_ms))
    flags = ("--kv-slots", str(slots), "--accepted-tokens", str(tokens.accepted), *pace, *arrangement.flags)
    drafter = services.drafter(MODELS / "draft", *flags, cores=options.drafter_cores, module=SHAPED)
    address = await asyncio.to_thread(lambda: drafter.address)
    clients = {name: AsyncClient(verifier) for name, verifier in verifiers.items()}
    for client in clients.values():
        await client.drafters.attach(address, name="shared")
    loads = {name: Load(verifiers[name], jobs[name], expected[name], STREAMS[name]) for name in arrangement.working}
    stop = asyncio.Event()
    # The verifier with many requests starts first.
    running = [asyncio.create_task(loads[name].load.run_until(stop)) for name in reversed(arrangement.working)]
    await asyncio.sleep(options.warm_up_seconds)
    secret = tokens.shown[ONE].read_text()
    before = await shares_of(address, secret)
    started = time.perf_counter()
    for load in loads.values():
        load.count()
    await asyncio.sleep(options.seconds)
    rates = {name: load.tokens / (time.perf_counter() - started) for name, load in loads.items()}
    after = await shares_of(address, secret)
    stop.set()
    await asyncio.gather(*running)
    for client in clients.values():
        await client.drafters.detach("shared")
        await client.close()
    drafter.stop()
    wrong = sum(len(load.load.differing) + len(load.load.lost) for load in loads.values())
    parts = []
    for name in arrangement.working:
        nodes = (after[name].drafted_nodes - before[name].drafted_nodes) / options.seconds
        told = f"{name} {rates[name]:.1f} tokens/s, {nodes:.0f} nodes/s"
        if "--first-come" not in arrangement.flags:  # first come keeps no account
            rows = (after[name].rows - before[name].rows) / options.seconds
            told += f", {rows:.0f} rows/s, {after[name].waiting_sequences} of {after[name].open_sequences} wait"
        parts.append(told)
    return "; ".join(parts), wrong


async def run(options: argparse.Namespace, services: Services) -> tuple[dict[str, object], int]:
    """Runs all arrangements; returns the figures, and how many outputs differed or were lost."""
    tokens = Tokens.write(Path(tempfile.mkdtemp(prefix="draftwire-tokens-")))
    pace = ("--step-ms", str(options.step_ms), "--row-ms", str(options.row_ms))
    verifiers = {
        name: services.verifier(
            MODELS / "target",
            *pace,
            *("--token-file", str(tokens.shown[name])),
            cores=options.verifier_cores,
            module=PACED,
        ).address
        for name in (ONE, MANY)
    }
    prompts = held_out_prompts(sum(STREAMS.values()) + 3)
    jobs = {ONE: jobs_of(prompts[:4], options.max_tokens, _TIMEOUT)}
    jobs[MANY] = jobs_of(prompts[4:], options.max_tokens, _TIMEOUT)
    expected = {
        name: await StreamLoad(each, len(each), lambda _, at=verifiers[name]: AsyncClient(at), plain_every=1).run_once()
        for name, each in jobs.items()
    }
    figures: dict[str, object] = {
        "pair": f"bundled, paced: a target's step takes {options.step_ms:g} ms and {options.row_ms:g} a row, the "
        f"draft model's {options.draft_step_ms:g} ms and {options.draft_row_ms:g} a row",
        "load": f"{STREAMS[ONE]} request at a time beside {STREAMS[MANY]}, {options.max_tokens} tokens each",
    }
    wrong = 0
    scarce = options.scarce_sequences * (options.max_tokens + 128)
    for title, slots, arrangements in (("", 32768, ARRANGEMENTS), (f"{scarce} KV slots, ", scarce, ARRANGEMENTS[1:3])):
        for arrangement in arrangements:
            told, faults = await measured(options, services, arrangement, slots, verifiers, jobs, expected, tokens)
            wrong += faults
            figures[title + arrangement.name] = told
            print(f"{title}{arrangement.name}: {told}", file=sys.stderr, flush=True)
    figures["outputs that differed from plain decoding's, or were lost"] = wrong
    return figures, wrong


def division_cost() -> dict[str, object]:
    """Returns the time in microseconds to divide a step, beside that of choosing its nodes without dividing it."""
    figures: dict[str, object] = {}
    for count, sequences in ((1, 1), (1, 8), (2, 9), (8, 64)):
        growth = TreeGrowth(StepCost([1, 64], [1.0, 1.5]))
        verifiers = [ServedVerifier(f"v{index % count}", 1.0, index % count) for index in range(sequences)]
        trees = [_tree(growth) for _ in verifiers]
        pairs = list(zip(verifiers, trees, strict=True))
        shares = StepShares(growth)
        plain = _microseconds(lambda: growth.expansions(trees, 0, 256))  # noqa: B023 - called at once
        divided = _microseconds(lambda: shares.expansions(pairs, 0, 256))  # noqa: B023
        figures[f"choosing nodes, {count} verifiers with {sequences} sequences"] = (
            f"{divided} µs, without shares {plain}"
        )
    for count, rows in ((2, 16), (8, 64), (64, 256)):
        queue = FairRows()
        wanted = {ServedVerifier(f"v{index}", 1.0 + index % 3, index): rows for index in range(count)}
        figures[f"dividing {rows} rows among {count}"] = f"{_microseconds(lambda: queue.divide(wanted, rows))} µs"  # noqa: B023
    return figures


def _tree(growth: TreeGrowth) -> GrowingTree:
    """Returns a tree of some 16 nodes."""
    tree = GrowingTree(TokenTree(10, 1), 64, 1000)
    node = tree.tree.root
    for _ in range(5):
        node.slot = 1
        node = growth.children(tree, node, (1, 2, 3), (-0.3, -1.8, -3.0))[0]
    return tree


def _microseconds(function: Callable[[], object]) -> Spread:
    runs = []
    for _ in range(20):
        started = time.process_time()
        for _ in range(50):
            function()
        runs.append((time.process_time() - started) / 50 * 1e6)
    return Spread.of(runs[5:])


def main() -> int:
    """Runs the measurement and prints the report; returns the exit status, 1 if an output differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each arrangement that are counted")
    parser.add_argument("--warm-up-seconds", type=float, default=6.0)
    parser.add_argument("--step-ms", type=float, default=40.0, help="time of a target's step in milliseconds")
    parser.add_argument("--row-ms", type=float, default=0.5, help="additional milliseconds per row")
    parser.add_argument("--draft-step-ms", type=float, default=4.0, help="time of a draft model's step in milliseconds")
    parser.add_argument("--draft-row-ms", type=float, default=0.5, help="additional milliseconds per row")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument(
        "--scarce-sequences", type=int, default=5, help="number of long requests for which there are KV slots"
    )
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    parser.add_argument("--drafter-cores", type=cores, default=[1])
    parser.add_argument("--cost-only", action="store_true", help="measure only the cost of dividing a step")
    add_report_options(parser)
    options = parser.parse_args()
    figures: dict[str, object] = {}
    wrong = 0
    if not options.cost_only:
        with Services() as services:
            figures, wrong = asyncio.run(run(options, services))
    figures |= division_cost()
    print_report("a drafter that two verifiers share", figures, options)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
