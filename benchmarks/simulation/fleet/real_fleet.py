"""A small fleet of real services on two cores: verifiers on one of them, drafters on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.services import Services, started
from benchmarks.simulation.fleet.other_load import OtherLoad
from draftwire import AsyncClient, BatchOptions, DrafterServiceInfo, RetryPolicy, Speculation, VerifierInfo
from tests.harness.services.service_process import ServiceProcess

_OPTIONS: BatchOptions = {"temperature": 0.0, "prefix_cache": False}
_SLOTS = ("--kv-slots", "8192")
_PATIENT = RetryPolicy(attempts_per_address=20)


@dataclass(frozen=True)
class RealRun:
    """Results of requests in a closed loop."""

    seconds: float
    """Seconds from the first request to the end of the last."""
    outputs: list[tuple[int, ...]]
    """Token ids of the outputs, by request."""
    first_token_seconds: list[float]
    between_seconds: list[float]
    """Seconds from a request's last tokens to the next request of its stream."""
    resumes: int
    """Number of requests that continued at another verifier."""
    steps: int
    """Steps of all sequences; of a request that continued elsewhere, only the steps there."""
    other_cores: float
    """Average number of cores that processes outside the fleet used."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, prompts included."""
        return sum(map(len, self.outputs)) / self.seconds

    @property
    def tokens_a_step(self) -> float | None:
        """Tokens per step of a sequence; None if a request was resumed, since not all of its steps are known."""
        return None if self.resumes else sum(map(len, self.outputs)) / self.steps


class RealFleet:
    """Verifiers and drafters, with every drafter attached to every verifier."""

    def __init__(self, services: Services, target: Path, draft: Path, cores: tuple[Sequence[int], Sequence[int]]):
        """cores: those of the verifiers and those of the drafters."""
        self._services = services
        self._target, self._draft = target, draft
        self._cores = cores
        self.verifiers: list[ServiceProcess] = []
        self.drafters: list[ServiceProcess] = []

    async def start(self, verifiers: int, drafters: int) -> None:
        """Starts the services. Raises RuntimeError."""
        for _ in range(drafters):
            self.drafters.append(self._services.drafter(self._draft, *_SLOTS, cores=self._cores[1]))
            await started([lambda: self.drafters[-1]])
        for _ in range(verifiers):
            self.verifiers.append(await self._start_verifier())

    async def replace_verifier(self, index: int) -> None:
        """Starts a new verifier in place of one that has ended. Raises RuntimeError."""
        self.verifiers[index] = await self._start_verifier()

    async def verifier_info(self, index: int) -> VerifierInfo:
        """Returns a verifier's status."""
        async with AsyncClient(self.verifiers[index].address) as client:
            return await client.model_info()

    async def drafter_info(self, index: int) -> DrafterServiceInfo:
        """Returns a drafter's status."""
        async with AsyncClient(self.verifiers[0].address) as client:
            return await client.drafters.load_state(self.drafters[index].address)

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the texts as token ids."""
        async with AsyncClient(self.verifiers[0].address) as client:
            return [await client.tokenize(text) for text in texts]

    async def run(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        streams: int,
        *,
        verifiers: int = 1,
        speculation: Speculation,
        kill_verifier: tuple[int, float] | None = None,
    ) -> RealRun:
        """Runs all prompts, `streams` at a time. Streams go to the verifiers in turn, and to another one if theirs is
        gone.

        kill_verifier: index of a verifier, and the seconds after the start at which it is killed. Raises DraftwireError
        if a request is lost.
        """
        addresses = [self.verifiers[index].address for index in range(verifiers)]
        waiting = iter(enumerate(prompts))
        outputs: dict[int, tuple[int, ...]] = {}
        first: list[float] = []
        between: list[float] = []
        resumes = steps = 0

        async def stream(number: int, client: AsyncClient) -> None:
            nonlocal resumes, steps
            last = None
            for index, prompt in waiting:
                asked = time.perf_counter()
                if last is not None:
                    between.append(asked - last)
                began = True
                async with client.stream(
                    list(prompt), max_tokens=max_tokens, ignore_eos=True, speculation=speculation, **_OPTIONS
                ) as chunks:
                    async for _ in chunks:
                        last = time.perf_counter()
                        if began:
                            first.append(last - asked)
                            began = False
                outputs[index] = tuple(chunks.result.token_ids)
                resumes += chunks.result.resumes
                steps += chunks.result.speculation.steps

        async with AsyncExitStack() as stack:
            clients = []
            for number in range(streams):
                home = number % verifiers
                others_too = [f"{address}?weight=0" for address in (*addresses[home + 1 :], *addresses[:home])]
                order = [addresses[home], *others_too]
                clients.append(await stack.enter_async_context(AsyncClient(order, timeout=120.0, retry=_PATIENT)))
            others = OtherLoad([service.pid for service in (*self.verifiers, *self.drafters)])
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(stream(number, client)) for number, client in enumerate(clients)]
                if kill_verifier is not None:
                    index, seconds = kill_verifier
                    await asyncio.sleep(seconds)
                    if all(task.done() for task in tasks):
                        raise RuntimeError(f"the requests had ended before the verifier was killed, {seconds:g} s on")
                    await asyncio.to_thread(self.verifiers[index].kill)
            seconds, other_cores = time.perf_counter() - start, others.cores()
        told = [outputs[index] for index in range(len(prompts))]
        return RealRun(seconds, told, first, between, resumes, steps, other_cores)

    async def _start_verifier(self) -> ServiceProcess:
        verifier = self._services.verifier(self._target, *_SLOTS, cores=self._cores[0])
        await started([lambda: verifier])
        async with AsyncClient(verifier.address) as client:
            for number, drafter in enumerate(self.drafters):
                await client.drafters.attach(drafter.address, f"drafter {number}")
        return verifier
