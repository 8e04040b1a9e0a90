"""Runs 8 streams for half an hour with a swap every 10 seconds and checks that no resource grows.

    python -m benchmarks.faults.soak [--minutes 30] [--streams 8] [--swap-every 10] [--json]

The services are a verifier and two drafters (good and early) that take turns. Every 10 s the resident memory, open
files and threads of each process are read from /proc, and the KV slots, sequences, streams and asyncio tasks from the
services. The first fifth is warm-up; after it a straight line is fitted to the memory, and its slope and growth are
printed.

The exit status is 1 if open files, threads, slots, sequences, streams or tasks have grown, if memory has grown by more
than 2 % over the last half, if slots are in use when no request runs, if an output changed between repetitions, or if a
request or a swap failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.process_usage import Trend, Usage, grew
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.service_logs import unhandled
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import StreamLoad, jobs_of
from draftwire import AsyncClient, DraftwireError
from draftwire.v1.drafter_service_pb2 import DrafterServiceGetModelInfoRequest
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from draftwire.v1.verifier_service_pb2 import GetModelInfoRequest
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceStub
from draftwire_tools.check.output import Output
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

SAMPLE_SECONDS = 10.0
WARM_UP_SHARE = 0.2
REQUEST_SECONDS = 600.0
REST_SECONDS = 15.0
COUNTED = ("open_files", "threads", "used_slots", "sequences", "streams", "tasks")
MEMORY_GROWTH = 0.02
"""Share by which a process's memory may grow over the last half of a run."""


@dataclass
class Watched:
    """A process and its readings."""

    name: str
    pid: int
    service: ServiceProcess | None
    """The service; None for this process, which runs the clients."""
    verifier: bool = False
    times: list[float] = field(default_factory=list)
    readings: dict[str, list[int]] = field(default_factory=dict)

    async def read(self) -> dict[str, int]:
        """Returns what the process holds now. Raises RuntimeError if it has ended, grpc.RpcError if it does not
        answer."""
        usage = Usage.of(self.pid)
        if usage is None:
            raise RuntimeError(f"{self.name} has ended")
        return {**usage._asdict(), **await self._held()}

    async def sample(self) -> None:
        """Records what the process holds now."""
        reading = await self.read()
        self.times.append(asyncio.get_running_loop().time())
        for name, value in reading.items():
            self.readings.setdefault(name, []).append(value)

    async def _held(self) -> dict[str, int]:
        """Returns what the service, or this process, holds; empty for a drafter that does not report it."""
        if self.service is None:
            return {"tasks": len(asyncio.all_tasks())}
        async with grpc.aio.insecure_channel(self.service.address) as channel:
            if self.verifier:
                engine = (await VerifierServiceStub(channel).GetModelInfo(GetModelInfoRequest(), timeout=10.0)).engine
                return {
                    "used_slots": engine.used_slots,
                    "sequences": engine.running_sequences + engine.waiting_requests,
                    "tasks": engine.tasks,
                }
            info = await DrafterServiceStub(channel).GetModelInfo(DrafterServiceGetModelInfoRequest(), timeout=10.0)
        if not info.HasField("status"):
            return {}
        status = info.status
        return {
            "used_slots": status.used_slots,
            "sequences": status.open_sequences,
            "streams": status.streams,
            "tasks": status.tasks,
        }

    def settled(self, name: str) -> list[int]:
        """Returns the readings after the warm-up."""
        values = self.readings[name]
        return values[int(WARM_UP_SHARE * len(values)) :]

    def memory(self, share: float = 1.0 - WARM_UP_SHARE) -> Trend:
        """Returns RSS in bytes over the last share of the run."""
        values = self.readings["rss_bytes"]
        values = values[len(values) - max(2, int(share * len(values))) :]
        return Trend.of(self.times[len(self.times) - len(values) :], values)

    @property
    def judged(self) -> tuple[str, ...]:
        """Returns the counts that must not grow. gRPC's thread pool in the clients' process is excluded: it grows when
        all its threads are busy."""
        return tuple(name for name in COUNTED if name in self.readings and (self.service or name != "threads"))


class Soak:
    """One soak run."""

    def __init__(self, options: argparse.Namespace, services: Services):
        self._options = options
        flags = ("--kv-slots", "8192")
        self._verifier = services.verifier(MODELS / "target", *flags)
        self._drafters = {name: services.drafter(MODELS / name, *flags) for name in ("draft", "draft-early")}
        self.watched: list[Watched] = []
        self.load: StreamLoad
        self.swaps = 0
        self.moved = 0
        self.faults: list[str] = []

    async def run(self) -> None:
        """Runs the streams and the swaps, takes samples, and checks what is left."""
        options = self._options
        clock = asyncio.get_running_loop().time
        services = {"verifier": self._verifier, **self._drafters}
        addresses = {name: await asyncio.to_thread(lambda s=service: s.address) for name, service in services.items()}
        self.watched = [Watched(name, service.pid, service, name == "verifier") for name, service in services.items()]
        self.watched.append(Watched("clients", os.getpid(), None))
        jobs = jobs_of(held_out_prompts(options.prompts), options.max_tokens, REQUEST_SECONDS)
        async with AsyncClient(addresses["verifier"], timeout=60.0) as client:

            def connect(number: int) -> AsyncClient:
                return AsyncClient(addresses["verifier"])

            expected: Sequence[Output] = await StreamLoad(jobs, options.streams, connect).run_once()
            self.load = StreamLoad(jobs, options.streams, connect, expected)
            await client.drafters.attach(addresses["draft"])
            stop = asyncio.Event()
            ends = clock() + 60.0 * options.minutes
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self.load.run_until(stop), name="streams")
                others = [
                    tasks.create_task(self._sample(), name="samples"),
                    tasks.create_task(self._swap(client, addresses["draft"], addresses["draft-early"]), name="swaps"),
                ]
                while clock() < ends:
                    await asyncio.sleep(min(60.0, max(0.0, ends - clock())))
                    print(
                        f"{(ends - clock()) / 60:.0f} minutes left: {self.load.requests} requests, {self.load.tokens} "
                        f"tokens, {self.swaps} swaps, {self.moved} sequences moved",
                        file=sys.stderr,
                        flush=True,
                    )
                for task in others:
                    task.cancel()
                stop.set()
                await running
        await self._at_rest()

    async def _sample(self) -> None:
        while True:
            for watched in self.watched:
                await watched.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _swap(self, client: AsyncClient, old: str, new: str) -> None:
        while True:
            await asyncio.sleep(self._options.swap_every)
            try:
                swap = await client.drafters.swap(old, new)
            except DraftwireError as error:
                self.faults.append(f"swap {self.swaps + 1}: {type(error).__name__}: {error.message}")
                continue
            self.swaps += 1
            self.moved += swap.moved_sequences
            old, new = new, old

    async def _at_rest(self) -> None:
        """Checks that slots are free once no request runs."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + REST_SECONDS
        for watched in self.watched:
            while True:
                reading = await watched.read()
                held = {name: reading[name] for name in ("used_slots", "sequences") if reading.get(name)}
                if not held:
                    break
                if clock() > deadline:
                    self.faults.append(f"{watched.name} at rest: {held}")
                    break
                await asyncio.sleep(0.2)

    def missed(self) -> list[str]:
        """Returns descriptions of all violations."""
        grown = [
            f"{watched.name}: {name} grew, {watched.settled(name)}"
            for watched in self.watched
            for name in watched.judged
            if grew(watched.settled(name))
        ]
        grown += [
            f"{watched.name}: memory grew by {growth:.1%} over the last half"
            for watched in self.watched
            if (growth := watched.memory(0.5).growth / watched.readings["rss_bytes"][-1]) > MEMORY_GROWTH
        ]
        bad = [f"{len(found)} requests {what}, the first: {found[0].what}" for what, found in (
            ("differ", self.load.differing), ("were lost", self.load.lost)) if found]  # fmt: skip
        return [*grown, *bad, *self.faults]


def describe(watched: Watched) -> str:
    """Describes a process's figures on one line."""
    trend = watched.memory()
    last = watched.readings["rss_bytes"][-1]
    late = watched.memory(0.5)
    parts = [
        f"RSS {last / 1e6:.0f} MB, {60 * trend.slope / 1e3:+.0f} kB/minute, {trend.growth / 1e6:+.2f} MB in all, "
        f"{late.growth / 1e6:+.2f} MB over the last half"
    ]
    for name in COUNTED:
        if name in watched.readings:
            values = watched.settled(name)
            parts.append(
                f"{name.replace('_', ' ')} {values[0]} to {values[-1]}, {min(values)} to {max(values)} in between"
            )
    return "; ".join(parts)


def main() -> int:
    """Runs the soak and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--swap-every", type=float, default=10.0, help="seconds between two swaps")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    add_report_options(parser)
    options = parser.parse_args()
    with Services() as services:
        soak = Soak(options, services)
        asyncio.run(soak.run())
        logged = [f"{log.name}: {line[:300]}" for log in services.logs.iterdir() for line in unhandled(log)]
    missed = soak.missed() + [f"unhandled: {line}" for line in logged[:5]]
    figures: dict[str, object] = {
        "setting": f"bundled pair, {options.streams} streams for {options.minutes:g} minutes, "
        f"a swap every {options.swap_every:g} s, samples every {SAMPLE_SECONDS:g} s, warm-up {WARM_UP_SHARE:.0%}",
        "requests": soak.load.requests,
        "tokens": soak.load.tokens,
        "swaps": f"{soak.swaps}, {soak.moved} sequences moved",
        **{watched.name: describe(watched) for watched in soak.watched},
        "missed": missed or "nothing",
    }
    if options.json:
        figures["samples"] = {watched.name: watched.readings for watched in soak.watched}
    print_report("soak", figures, options)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
