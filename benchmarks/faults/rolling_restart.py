"""Restarts verifiers, drafters and gateways in turn under load; counts lost requests, measures stalls.

    python -m benchmarks.faults.rolling_restart [--rounds 3] [--streams 4] [--http-streams 4] [--pause 5] [--json]

Two verifiers, two drafters and two gateways are restarted in turn, by SIGTERM and a new process at the same address,
round after round, while streams run: streams of the SDK, whose clients know both verifiers, and streams over HTTP,
whose clients go to the other gateway when one accepts no request. Each output is compared with that of plain decoding,
computed first. A stall is the time between two chunks of one stream. Stalls are grouped by what was being restarted, or
had just been, and compared with those while nothing was. The exit status is 1 if a request failed or its output
differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from benchmarks.faults.gateway_load import GatewayLoad
from benchmarks.faults.stalls import Blame, gaps_by_kind, percentile
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import Gap, Job, StreamLoad, jobs_of
from draftwire import AsyncClient, RetryPolicy
from draftwire_tools.check.output import Output
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

DRAFTS = ("draft", "draft-early")
KINDS = ("drafter", "verifier", "gateway")
REQUEST_SECONDS = 180.0
"""Seconds after which a request counts as lost."""
READY_SECONDS = 60.0
"""Seconds within which both verifiers must use a restarted drafter again."""
PATIENT = RetryPolicy(attempts_per_address=60)
"""Channels of one process to one address share their back-off after a refusal, so a service that is back may still
count as away for a moment."""


class Fleet:
    """Two processes of each kind, which keep their addresses."""

    def __init__(self, services: Services, grace: float):
        self._services = services
        self._grace = ("--shutdown-grace-seconds", str(round(grace)))
        self.drafters: list[ServiceProcess] = []
        self.verifiers: list[ServiceProcess] = []
        self.gateways: list[ServiceProcess] = []

    async def start(self) -> None:
        """Starts all processes. Raises RuntimeError."""
        self.drafters = [self._services.drafter(MODELS / model) for model in DRAFTS]
        for drafter in self.drafters:
            await asyncio.to_thread(lambda service=drafter: service.address)
        self.verifiers = [self._verifier() for _ in range(2)]
        for verifier in self.verifiers:
            await asyncio.to_thread(lambda service=verifier: service.address)
        self.gateways = [self._gateway() for _ in range(2)]
        for gateway in self.gateways:
            await asyncio.to_thread(lambda gateway=gateway: gateway.address)
        await self._drafters_are_back()

    async def restart(self, kind: str, index: int) -> None:
        """Restarts one process; returns when it serves again. Raises RuntimeError."""
        members = {"drafter": self.drafters, "verifier": self.verifiers, "gateway": self.gateways}[kind]
        old = members[index]
        listen = ("--listen", old.address)
        await asyncio.to_thread(old.stop)
        if kind == "gateway":
            members[index] = self._gateway(*listen)
        elif kind == "verifier":
            members[index] = self._verifier(*listen)
        else:
            members[index] = self._services.drafter(MODELS / DRAFTS[index], *listen)
        await asyncio.to_thread(lambda: members[index].address)
        if kind != "gateway":
            await self._drafters_are_back()

    def _verifier(self, *flags: str) -> ServiceProcess:
        attached = [part for each in self.drafters for part in ("--drafter", each.address)]
        return self._services.verifier(MODELS / "target", *attached, *self._grace, *flags)

    def _gateway(self, *flags: str) -> ServiceProcess:
        return self._services.gateway([each.address for each in self.verifiers], *self._grace, *flags)

    async def _drafters_are_back(self) -> None:
        async with asyncio.timeout(READY_SECONDS):
            for verifier in self.verifiers:
                async with AsyncClient(verifier.address, retry=PATIENT) as client, client.drafters.watch() as states:
                    async for state in states:
                        if [each.state for each in state] == ["ready"] * len(DRAFTS):
                            break


async def measure(options: argparse.Namespace, fleet: Fleet) -> dict[str, object]:
    """Runs the load and the restarts. Raises RuntimeError."""
    await fleet.start()
    addresses = [each.address for each in fleet.verifiers]
    jobs = [
        Job(job.prompt, job.seed, {**job.options, "temperature": job.options.get("temperature", 1.0)})
        for job in jobs_of(held_out_prompts(options.prompts), options.max_tokens, REQUEST_SECONDS)
    ]

    def connect(number: int) -> AsyncClient:
        return AsyncClient([addresses[number % 2], addresses[1 - number % 2]])

    expected: list[Output] = await StreamLoad(jobs, 2, connect, plain_every=1).run_once()
    gaps: dict[str, list[Gap]] = {"SDK": [], "HTTP": []}
    sdk = StreamLoad(jobs, options.streams, connect, expected, on_gap=gaps["SDK"].append)
    texts = [output.text for output in expected]
    urls = [gateway.url for gateway in fleet.gateways]
    http = GatewayLoad(jobs, options.http_streams, urls, texts, REQUEST_SECONDS, on_gap=gaps["HTTP"].append)
    stop = asyncio.Event()
    restarts: list[Blame] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sdk.run_until(stop))
        tasks.create_task(http.run_until(stop))
        try:
            await asyncio.sleep(options.pause)
            for _ in range(options.rounds):
                for kind in KINDS:
                    for index in range(2):
                        restarts.append(await restart(fleet, kind, index))
                        await asyncio.sleep(options.pause)
        finally:
            stop.set()
    for finding in (*sdk.lost, *sdk.differing, *http.lost, *http.differing):
        print(f"request {finding.number}: {finding.what}", file=sys.stderr)
    return {
        "restarts": len(restarts),
        "requests, SDK": sdk.requests,
        "requests, HTTP": http.requests,
        "requests lost": len(sdk.lost) + len(http.lost),
        "outputs that differ": len(sdk.differing) + len(http.differing),
        "requests resumed at the other verifier, SDK": sdk.resumes,
        "requests that went to the other gateway": http.moved,
        **{
            f"restart of a {kind}, seconds": Spread.of(
                [each.end - each.start for each in restarts if each.kind == kind]
            )
            for kind in KINDS
        },
        **{name: told for way in gaps for name, told in stalls(way, gaps[way], restarts)},
    }


async def restart(fleet: Fleet, kind: str, index: int) -> Blame:
    """Restarts a process; returns when, and which."""
    clock: Callable[[], float] = asyncio.get_running_loop().time
    start = clock()
    await fleet.restart(kind, index)
    print(f"{kind} {index + 1}: restarted in {clock() - start:.1f} s", file=sys.stderr, flush=True)
    return Blame(start, clock(), kind, kind == "verifier")


def stalls(way: str, gaps: list[Gap], restarts: list[Blame]) -> list[tuple[str, str]]:
    """Describes the stalls by what was restarted, in words."""
    told = []
    by_kind = gaps_by_kind([gap for gap in gaps if not gap.first], restarts)
    for kind in ("", *KINDS):
        seconds = [gap.end - gap.start for gap in by_kind.get(kind, [])]
        title = f"stalls over {way}, {f'restart of a {kind}' if kind else 'nothing restarted'}"
        p50, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.99))
        most = max(seconds, default=0.0) * 1000
        told.append((title, f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {most:.0f} ms, of {len(seconds)}"))
    return told


def main() -> None:
    """Runs the restarts and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="number of times that every process is restarted")
    parser.add_argument("--streams", type=int, default=4, help="number of streams of the SDK")
    parser.add_argument("--http-streams", type=int, default=4, help="number of streams over HTTP")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two restarts")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=400)
    add_report_options(parser)
    options = parser.parse_args()
    with Services() as services:
        figures = asyncio.run(measure(options, Fleet(services, REQUEST_SECONDS)))
    print_report("rolling_restart", figures, options)
    if figures["requests lost"] or figures["outputs that differ"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
