"""Injects 500 faults in ten minutes under 16 streams and compares every output with that of a quiet run.

    python -m benchmarks.faults.chaos [--seconds 600] [--faults 500] [--seed 1] [--streams 16] [--self-check] [--json]
    python -m benchmarks.faults.chaos --features DIR

The cluster has two verifiers and three drafters (good, early, untrained), each a process behind its own proxy. With
--features, drafters that read features (EAGLE-3, DFlash) join them, and draft for every other request in any case. The
outputs are computed first, without drafters and faults. Then streams of held-out prompts with mixed sampling run
through clients that know both verifiers. Meanwhile processes are killed (SIGKILL) and restarted, frozen (SIGSTOP) and
resumed, links are partitioned, cut and delayed by up to 200 ms each way, drafters' links corrupt bytes, and drafters
are swapped and detached. At most one verifier is down at a time; any number of drafters may be.

Bytes are corrupted on the drafters' links only. TCP's checksum keeps corruption from applications, and a flipped bit in
a client's stream would be an undetectable wrong token; a drafter is not trusted in any case.

The exit status is 1 if an output differs, a request is lost, a KV slot leaks, a service dies or logs an unhandled
fault, a drafter does not come back, or fewer faults were injected than asked for. `--self-check` plants one of each of
the first three and a logged one; the exit status is then 1 unless exactly these are found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.faults.chaos_cluster import Cluster, Member
from benchmarks.faults.chaos_plan import plan
from benchmarks.faults.chaos_report import Facts, figures_of, missed_targets
from benchmarks.faults.drafter_watch import DrafterWatch
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.process_usage import Usage
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.service_logs import unhandled
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import Gap, StreamLoad, jobs_of
from draftwire import AsyncClient, RetryPolicy
from tests.harness.checkout import MODELS

DRAFTS = {"good": "draft", "early": "draft-early", "untrained": "draft-untrained"}
REQUEST_SECONDS = 180.0
"""Seconds after which a request counts as lost."""
CALM_SECONDS = 15.0
PLAIN_EVERY = 13
"""Every 13th request is decoded plainly, which shows the time of a step under the same load as everything else."""
PATIENT = RetryPolicy(fruitless_losses=100)
REST_SECONDS = 45.0
"""Seconds after the last fault in which drafters must be back and slots free."""


class Chaos:
    """One chaos run."""

    def __init__(self, options: argparse.Namespace, services: Services):
        self._options = options
        self._services = services
        flags = ["--kv-slots", "8192"]  # enough for all streams at one verifier
        self.verifiers = [Member(f"verifier {n}", MODELS / "target", services, True, flags) for n in (1, 2)]
        self.drafters = [Member(f"{name} drafter", MODELS / DRAFTS[name], services, False, flags) for name in DRAFTS]
        reading = [*flags, "--target", str(MODELS / "target")]
        self.drafters += [
            Member(f"{Path(each).name} drafter", Path(each), services, False, reading) for each in options.features
        ]
        self.cluster = Cluster(self.verifiers, self.drafters)
        self.facts = Facts(self.cluster)

    async def run(self) -> Facts:
        """Runs everything, from the start of the services to the checks when they are idle."""
        async with contextlib.AsyncExitStack() as proxies:
            members = (*self.verifiers, *self.drafters)
            for member in members:
                await proxies.enter_async_context(member.proxy)
            # The first service starts the server that forks the others.
            for member in members:
                self._say(f"starting {member.name}")
                await member.start()
            await self._references()
            for verifier in self.verifiers:
                verifier.flags += [flag for drafter in self.drafters for flag in ("--drafter", drafter.address)]
                await self.cluster.attach_missing(verifier)
            await self._under_faults()
            await self._at_rest()
        return self.facts

    async def _references(self) -> None:
        """Returns every job's output and the time of a plain step, with one verifier and nothing else running."""
        options = self._options
        self.jobs = jobs_of(held_out_prompts(options.prompts), options.max_tokens, REQUEST_SECONDS)
        address = self.verifiers[0].service.address
        async with AsyncClient(address) as client:
            self.facts.bit_exact = (await client.model_info()).bit_exact
        load = StreamLoad(self.jobs, options.streams, lambda number: AsyncClient(address))
        load.on_gap = self.facts.plain_gaps.append
        self.expected = await load.run_once()
        self._say(f"{len(self.expected)} references, a plain step takes {1e3 * self.facts.plain_step_alone:.0f} ms")

    async def _under_faults(self) -> None:
        options, facts = self._options, self.facts
        clock = asyncio.get_running_loop().time
        rng = random.Random(options.seed)
        addresses = [verifier.address for verifier in self.verifiers]

        def connect(number: int) -> AsyncClient:
            # Every request has its own client: one client would have all streams move together. Faults may well hit a
            # request several times before its next token, and here it is never the request that ends a verifier.
            return AsyncClient(rng.sample(addresses, len(addresses)), retry=PATIENT)

        def take(gap: Gap) -> None:
            (facts.gaps if facts.began else facts.calm_gaps).append(gap)

        load = facts.load = StreamLoad(self.jobs, options.streams, connect, self.expected, take)
        load.plain_every = PLAIN_EVERY
        load.always_every = 2 if options.features else 0
        load.planted = 0 if options.self_check else None
        watch = facts.watch = DrafterWatch(self.cluster)
        stop = asyncio.Event()
        keepers = [
            asyncio.create_task(keeper, name=name)
            for keeper, name in (
                (watch.run(), "watch"),
                (self.cluster.keep_attached(), "attach"),
                (self.cluster.keep_alive(), "sample"),
            )
        ]
        running = asyncio.create_task(load.run_until(stop), name="streams")
        try:
            await asyncio.sleep(CALM_SECONDS)
            self._say(f"{load.tokens / CALM_SECONDS:.0f} tokens/s without faults; faults begin")
            facts.began = clock()
            facts.own_rss = (own_rss(), 0)
            planned = plan(options.seed, options.faults, options.seconds, len(self.drafters), len(self.verifiers))
            faults = asyncio.create_task(self.cluster.run(planned), name="faults")
            told: Counter[str] = Counter()
            while not faults.done():
                await asyncio.wait([faults, running, *keepers], timeout=10.0, return_when=asyncio.FIRST_COMPLETED)
                self._say(
                    f"{clock() - facts.began:4.0f} s: {len(self.cluster.injected)} faults, {load.requests} requests, "
                    f"{load.tokens} tokens, {len(load.differing)} differ, {len(load.lost)} lost"
                )
                for what, findings in (("differs", load.differing), ("lost", load.lost)):
                    for finding in findings[told[what] :]:
                        self._say(f"       request {finding.number} {what}: {finding.what}")
                    told[what] = len(findings)
                for task in (running, *keepers):
                    if task.done():  # unexpected
                        faults.cancel()
                        task.result()
            await faults
            facts.ended = clock()
            stop.set()
            await asyncio.wait_for(running, REQUEST_SECONDS)
        finally:
            for task in (running, *keepers):
                task.cancel()
            await asyncio.wait([running, *keepers])

    async def _at_rest(self) -> None:
        """Checks what is left when no request is running."""
        facts = self.facts
        async with self._planted():
            try:
                async with asyncio.timeout(REST_SECONDS):
                    while await self._look():  # noqa: ASYNC110 (it is services that are looked at)
                        await asyncio.sleep(0.5)
            except TimeoutError:
                pass  # the last look found what is reported
        facts.own_rss = (facts.own_rss[0], own_rss())
        for log in sorted(self._services.logs.iterdir()):
            facts.unhandled += [f"{log.name}: {line}" for line in unhandled(log)]

    async def _look(self) -> bool:
        """Notes violations; returns whether there are any."""
        facts = self.facts
        facts.leaked, facts.away, facts.untold = {}, [], []
        for verifier in self.verifiers:
            missing = await self.cluster.attach_missing(verifier)
            facts.away += [f"{address} at {verifier.name}" for address in missing]
            async with verifier.client() as client:
                engine = (await client.model_info()).engine
            if engine.used_slots or engine.running_sequences or engine.waiting_requests:
                facts.leaked[verifier.name] = engine.used_slots
        for drafter in self.drafters:
            status = await drafter.drafter_status()
            if status is None:
                facts.untold.append(drafter.name)
            elif status.used_slots or status.open_sequences:
                facts.leaked[drafter.name] = status.used_slots
        return bool(facts.leaked or facts.away)

    @contextlib.asynccontextmanager
    async def _planted(self) -> AsyncIterator[None]:
        """Plants faults for --self-check: a request that has nowhere to go, one that never ends, and a traceback in a
        log."""
        if not self._options.self_check:
            yield
            return
        nowhere = StreamLoad(self.jobs[:1], 1, lambda number: AsyncClient("127.0.0.1:1"))
        with contextlib.suppress(RuntimeError):
            await nowhere.run_once()
        self.facts.load.lost += nowhere.lost
        with self.verifiers[0].service.log.open("a") as log:
            log.write("Traceback (most recent call last): planted\n")
        stop = asyncio.Event()

        async def hold() -> None:
            async with self.verifiers[0].client() as client:
                while not stop.is_set():
                    async with client.stream(
                        "def", max_tokens=1024, ignore_eos=True, timeout=REQUEST_SECONDS
                    ) as stream:
                        async for _ in stream:
                            if stop.is_set():
                                return

        holding = asyncio.create_task(hold(), name="planted request")
        try:
            yield
        finally:
            stop.set()
            await holding

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def own_rss() -> int:
    """Returns the resident memory of this process, in bytes."""
    usage = Usage.of(os.getpid())
    assert usage is not None
    return usage.rss_bytes


def main() -> int:
    """Runs the faults and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds over which the faults are spread")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--features",
        metavar="DIR",
        action="append",
        default=[],
        help="directory of a drafter for the bundled target that reads features; may be repeated",
    )
    parser.add_argument("--self-check", action="store_true", help="plant faults that the benchmark itself must find")
    add_report_options(parser)
    options = parser.parse_args()
    with Services() as services:
        facts = asyncio.run(Chaos(options, services).run())
        print(f"the services' logs are in {services.logs}", file=sys.stderr)
    missed = missed_targets(facts, options.faults, planted=1 if options.self_check else 0)
    figures: dict[str, object] = {
        "setting": f"2 verifiers, {3 + len(options.features)} drafters"
        + (f" ({len(options.features)} of which read features)" if options.features else "")
        + f", {options.streams} streams of up to {options.max_tokens} tokens, "
        f"seed {options.seed}" + (", with planted faults" if options.self_check else ""),
        **figures_of(facts),
        "targets missed": missed or "none",
    }
    print_report("chaos", figures, options)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
