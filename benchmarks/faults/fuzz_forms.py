"""Asks a verifier for hostile schemas, expressions and grammars while another caller generates.

    python -m benchmarks.faults.fuzz_forms [--seconds 60] [--seed 1] [--json]

A real verifier of the bundled target is asked for forms that are deep, long, wide, repeated and recursive, in every
notation: one of each kind as large as a text may be, then random ones. Meanwhile a bystander generates without a form,
and every output is compared. The exit status is 1 if the verifier ends, is unhealthy, logs a fault or holds a slot at
the end; if an answer is neither a text nor a refusal that names the form; if an output differs or takes longer than its
bound; or if the verifier and the processes it starts exceed their memory bound.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

import grpc

from benchmarks.faults.fuzz_form_texts import MOST_TEXT, Form, extremes, random_form
from benchmarks.harness.report import add_report_options, end_with_faults
from benchmarks.harness.service_logs import logged_faults
from benchmarks.harness.services import Services
from benchmarks.harness.stream_load import Job, StreamLoad
from draftwire import AsyncClient, RetryPolicy
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.structured_output_pb2 import StructuredOutput
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

SECONDS = 60.0
"""Seconds within which every request with a form must end."""
BYSTANDER_SECONDS = 30.0
"""Seconds within which every request of the bystander must end."""
MOST_GROWTH = 3 * 1024**3
"""Most bytes that the verifier and its processes may hold beyond those at the start."""
_IN_PARALLEL = 2
_LEAST_RANDOM = 20
"""Least number of random forms, however long the others took."""
_FINE = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Acceptable outcomes: a text, a form that is refused, or one that waited too long for others."""
_NO_TOKEN = "constraints allow no token"
"""Part of the error of a request whose form reaches a limit while it generates."""


@dataclass
class FormFindings:
    """Counts and faults of a fuzzing run."""

    codes: Counter[str] = field(default_factory=Counter)
    """Outcomes of the requests with forms, by notation."""
    bystander_requests: int = 0
    bystander_longest: float = 0.0
    """Seconds of the bystander's longest request."""
    growth: int = 0
    """Peak memory in bytes beyond that at the start."""
    faults: list[str] = field(default_factory=list)
    """Descriptions of faults."""


class FormFuzzer:
    """An attack on one verifier with forms."""

    def __init__(self, verifier: ServiceProcess, seed: int, seconds: float) -> None:
        """seconds: least duration of the attack."""
        self.findings = FormFindings()
        self._verifier = verifier
        self._address = ""
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._stop = asyncio.Event()

    async def run(self) -> FormFindings:
        """Sends the requests and checks the state of the verifier."""
        self._address = await asyncio.to_thread(lambda: self._verifier.address)
        policy = RetryPolicy(attempts_per_address=1)

        def connect(number: int) -> AsyncClient:
            return AsyncClient(self._address, timeout=BYSTANDER_SECONDS, retry=policy)

        jobs = [Job("def f(", seed, {"max_tokens": 16, "temperature": 0.8, "ignore_eos": True}) for seed in range(4)]
        async with connect(0) as client:
            bystander = StreamLoad(jobs, 1, connect, await StreamLoad(jobs, 1, connect).run_once())
            before = _memory(self._verifier.pid)
            beside = [
                asyncio.create_task(bystander.run_until(self._stop)),
                asyncio.create_task(self._watch_memory(before)),
            ]
            try:
                deadline = time.monotonic() + self._seconds
                forms = chain(extremes(), (random_form(self._rng) for _ in repeat(None)))
                count = sum(1 for _ in extremes()) + _LEAST_RANDOM
                lock = asyncio.Lock()

                async def worker() -> None:
                    nonlocal count
                    async with grpc.aio.insecure_channel(self._address) as channel:
                        while self._verifier.alive and len(self.findings.faults) < 100:
                            async with lock:
                                if count <= 0 and time.monotonic() > deadline:
                                    return
                                count -= 1
                                form = next(forms)
                            await self._ask(channel, form)

                await asyncio.gather(*(worker() for _ in range(_IN_PARALLEL)))
            finally:
                self._stop.set()
                await asyncio.wait(beside)
            for task in beside:
                task.result()
            self.findings.bystander_requests, self.findings.bystander_longest = bystander.requests, bystander.longest
            self.findings.faults += bystander.faults
            await self._look(client)
        return self.findings

    async def _watch_memory(self, before: int) -> None:
        while not self._stop.is_set() and self._verifier.alive:
            self.findings.growth = max(self.findings.growth, _memory(self._verifier.pid) - before)
            await asyncio.sleep(0.2)
        if self.findings.growth > MOST_GROWTH:
            self.findings.faults.append(f"memory grew by {self.findings.growth >> 20} MiB")

    async def _ask(self, channel: grpc.aio.Channel, form: Form) -> None:
        family, kind, text = form
        if len(text) > 4 * MOST_TEXT:
            text = text[: 4 * MOST_TEXT]
        request = pb.GenerateRequest(
            text="def f(",
            max_tokens=8,
            sampling=SamplingParams(temperature=0.8, seed=1),
            structured_output=StructuredOutput(**{kind: text}),
        )
        call = channel.unary_stream(
            "/draftwire.v1.VerifierService/Generate", request_serializer=pb.GenerateRequest.SerializeToString
        )(request, timeout=SECONDS)
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass  # its outcome is checked below
        code, details = await call.code(), await call.details()
        self.findings.codes[f"{kind} {code.name}"] += 1
        refused = code == grpc.StatusCode.INVALID_ARGUMENT
        told = not refused or f"structured_output.{kind}" in details or _NO_TOKEN in details
        if code not in _FINE or not told:
            self.findings.faults.append(f"{family} ({kind}, {len(text)} bytes) ended with {code.name}: {details}")

    async def _look(self, client: AsyncClient) -> None:
        """Checks that the verifier is alive and holds nothing."""
        if not self._verifier.alive:
            self.findings.faults.append("the verifier has ended")
            return
        deadline = time.monotonic() + SECONDS
        while (engine := (await client.model_info()).engine).used_slots and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if engine.used_slots:
            self.findings.faults.append(f"slots are left in use: {engine}")
        self.findings.faults += [f"logged: {line}" for line in logged_faults(self._verifier.log)]


def _memory(pid: int) -> int:
    """Returns the bytes of memory that a process and its descendants hold."""
    total, pids = 0, [pid]
    while pids:
        process = Path(f"/proc/{pids.pop()}")
        try:
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):  # shared memory is counted once
                    total += 1024 * int(line.split()[1])
            for task in (process / "task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # the process has just ended
    return total


async def attack(services: Services, seed: int, seconds: float) -> FormFindings:
    """Starts a verifier and attacks it with forms."""
    return await FormFuzzer(services.verifier(MODELS / "target"), seed, seconds).run()


def main() -> None:
    """Attacks the verifier and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="least duration of the attack in seconds")
    parser.add_argument("--seed", type=int, default=None, help="seed of everything random; printed")
    add_report_options(parser)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    started = time.monotonic()
    with Services() as services:
        findings = asyncio.run(attack(services, seed, options.seconds))
    figures: dict[str, object] = {
        "seed": seed,
        "forms": findings.codes.total(),
        "ends of calls": dict(sorted(findings.codes.items())),
        "seconds": round(time.monotonic() - started),
        "bystander's requests": findings.bystander_requests,
        "longest of them, s": round(findings.bystander_longest, 2),
        "memory grew by, MiB": findings.growth >> 20,
        "faults": len(findings.faults),
    }
    end_with_faults("fuzz_forms", figures, findings.faults, options)


if __name__ == "__main__":
    main()
