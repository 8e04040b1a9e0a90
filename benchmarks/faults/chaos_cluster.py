"""Verifiers and drafters for chaos.py: each a process behind its own proxy, and the faults done to them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import grpc

from benchmarks.faults.chaos_plan import Fault
from benchmarks.harness.process_usage import Usage
from benchmarks.harness.services import Services
from benchmarks.harness.tcp_proxy import TcpProxy
from draftwire import AsyncClient, DraftwireError, RetryPolicy
from draftwire.v1.drafter_service_pb2 import DrafterServiceGetModelInfoRequest, DrafterStatus
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from tests.harness.services.service_process import ServiceProcess

POOL_SECONDS = 30.0
"""Deadline in seconds of a call that manages drafters."""
_CALL_SECONDS = 5.0


class Life(NamedTuple):
    """One process of a member; after a kill the member has another one."""

    pid: int
    samples: list[tuple[float, Usage]]
    """Resource usage with its time in seconds, by time.monotonic."""


class Member:
    """A verifier or drafter. Its proxy's address stays the same when its process is replaced."""

    def __init__(self, name: str, model: Path, services: Services, verifier: bool, flags: Sequence[str] = ()):
        self.name = name
        self.model = model
        self.verifier = verifier
        self.flags = list(flags)
        self.proxy = TcpProxy("127.0.0.1:1")
        self.lock = asyncio.Lock()
        """Held by the fault under way at this member."""
        self.lives: list[Life] = []
        self.service: ServiceProcess
        self._services = services

    @property
    def address(self) -> str:
        """The address at which others reach the member: its proxy's."""
        return self.proxy.address

    async def start(self) -> None:
        """Starts a process and waits until it serves. Raises RuntimeError."""
        fork = self._services.forked_verifier if self.verifier else self._services.forked_drafter
        service = fork(self.model, *self.flags)
        # Only now, because asking a service for its address blocks until it serves, which the event loop must not do.
        self.proxy.target = await asyncio.to_thread(lambda: service.address)
        self.service = service
        self.lives.append(Life(self.service.pid, []))

    def sample(self) -> None:
        """Records the resources of the process."""
        usage = Usage.of(self.lives[-1].pid)
        if usage is not None:
            self.lives[-1].samples.append((asyncio.get_running_loop().time(), usage))

    def client(self) -> AsyncClient:
        """Returns a client that bypasses the proxy; the caller closes it."""
        return AsyncClient(self.service.address, timeout=POOL_SECONDS, retry=RetryPolicy(attempts_per_address=1))

    async def drafter_status(self) -> DrafterStatus | None:
        """Returns a drafter's load; None if it does not report it. Raises grpc.RpcError."""
        async with grpc.aio.insecure_channel(self.service.address) as channel:
            info = await DrafterServiceStub(channel).GetModelInfo(
                DrafterServiceGetModelInfoRequest(), timeout=_CALL_SECONDS
            )
        return info.status if info.HasField("status") else None


class Injected(NamedTuple):
    """A fault that was injected."""

    fault: Fault
    member: str
    start: float
    """Start in seconds, by time.monotonic."""
    end: float
    refused: str | None
    """Reason why a swap or detachment was refused, if it was."""


class Cluster:
    """The members of a run, to which it applies the faults of a plan."""

    def __init__(self, verifiers: Sequence[Member], drafters: Sequence[Member]):
        self.verifiers = list(verifiers)
        self.drafters = list(drafters)
        self.injected: list[Injected] = []
        self.under_way: dict[int, Fault] = {}
        self.died: list[str] = []
        """Members whose process ended without a fault."""
        self._pool_locks = {member.name: asyncio.Lock() for member in verifiers}
        # At most one verifier at a time is down: with none left, a request has nowhere to go.
        self._one_verifier = asyncio.Lock()

    async def run(self, plan: Sequence[Fault]) -> None:
        """Injects all faults of a plan and waits for the last one to end."""
        clock = asyncio.get_running_loop().time
        started = clock()
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                await asyncio.sleep(max(0.0, started + fault.at - clock()))
                tasks.create_task(self._inject(fault), name=fault.kind)

    async def _inject(self, fault: Fault) -> None:
        clock = asyncio.get_running_loop().time
        action = fault.kind.split()[0]
        async with AsyncExitStack() as held:
            if action in ("swap", "detach"):
                member = self.verifiers[fault.target]
                await held.enter_async_context(self._pool_locks[member.name])
            else:
                if fault.of_verifier:
                    await held.enter_async_context(self._one_verifier)
                member = (self.verifiers if fault.of_verifier else self.drafters)[fault.target]
                await held.enter_async_context(member.lock)
            start = clock()
            self.under_way[fault.number] = fault
            refused = None
            try:
                if action in ("swap", "detach"):
                    refused = await self._manage(member, fault)
                else:
                    await self._break(member, fault)
            finally:
                del self.under_way[fault.number]
            self.injected.append(Injected(fault, member.name, start, clock(), refused))

    async def _break(self, member: Member, fault: Fault) -> None:
        """Applies a fault to a process or to its line, and reverts it."""
        match fault.kind.split()[0]:
            case "kill":
                member.service.kill()
                await member.start()
            case "stop":
                member.service.process.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    member.service.process.send_signal(signal.SIGCONT)
            case "cut":
                member.proxy.cut()
            case "partition":
                member.proxy.partition()
                await self._calm_after(member, fault.seconds)
            case "delay":
                member.proxy.set_delay(fault.amount)
                await self._calm_after(member, fault.seconds)
            case "corrupt":
                member.proxy.corrupt(fault.amount)
                await self._calm_after(member, fault.seconds)

    async def _calm_after(self, member: Member, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            member.proxy.calm()

    async def _manage(self, member: Member, fault: Fault) -> str | None:
        """Swaps or detaches one of a verifier's drafters; returns why that was refused, or None."""
        try:
            async with member.client() as client:
                listed = [drafter.name for drafter in await client.drafters.list()]
                if not listed:
                    return "no drafter is attached"
                old = listed[int(fault.amount * len(listed))]
                if fault.kind == "detach":
                    await client.drafters.detach(old)
                else:
                    others = [drafter.address for drafter in self.drafters if drafter.address != old]
                    await client.drafters.swap(old, others[fault.number % len(others)])
                await client.drafters.attach(old)
        except DraftwireError as error:
            return f"{type(error).__name__}: {error.message}"
        return None

    async def keep_attached(self) -> None:
        """Reattaches drafters that faults have detached, forever."""
        while True:
            await asyncio.sleep(1.0)
            for verifier in self.verifiers:
                await self.attach_missing(verifier)

    async def keep_alive(self) -> None:
        """Samples all processes, and restarts those that ended without a fault, forever."""
        while True:
            for member in (*self.verifiers, *self.drafters):
                if member.lock.locked():
                    continue
                if not member.service.alive:
                    self.died.append(f"{member.name}, log {member.service.log}")
                    async with member.lock:  # no fault may hit a starting process
                        await member.start()
                member.sample()
            await asyncio.sleep(2.0)

    async def attach_missing(self, verifier: Member) -> list[str]:
        """Attaches the drafters that a verifier lacks; returns the addresses of those that are still not ready."""
        async with self._pool_locks[verifier.name]:
            try:
                async with verifier.client() as client:
                    listed = {drafter.address for drafter in await client.drafters.list()}
                    for drafter in self.drafters:
                        if drafter.address not in listed and not drafter.lock.locked():
                            await client.drafters.attach(drafter.address)
                    states = {drafter.address: drafter.state for drafter in await client.drafters.list()}
            except DraftwireError:  # it is retried
                states = {}
        return [drafter.address for drafter in self.drafters if states.get(drafter.address) != "ready"]
