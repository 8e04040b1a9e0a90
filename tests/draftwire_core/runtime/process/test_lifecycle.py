"""Signals sent to a real process: a fork, so that it is there within a moment."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire.version import __version__
from tests.harness import processes
from tests.harness.processes import ended
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

PROBE = Path(__file__).with_name("probe_service.py")


class Service:
    """A running probe, what it prints and the log it has written."""

    def __init__(
        self, process: subprocess.Popen[bytes], stdout: asyncio.StreamReader, stderr: asyncio.StreamReader
    ) -> None:
        self.process = process
        self.stdout = stdout
        self.log: list[dict[str, Any]] = []
        self._stderr = stderr

    async def event(self, name: str) -> dict[str, Any]:
        """Reads the log up to an event."""
        async for line in self._stderr:
            record = json.loads(line)
            self.log.append(record)
            if record["event"] == name:
                return dict(record)
        raise AssertionError(f"the service ended without {name!r}: {self.log}")

    async def finish(self) -> int:
        """Reads the rest of the log and returns the exit status."""
        async for line in self._stderr:
            self.log.append(json.loads(line))
        return await asyncio.to_thread(self.process.wait)

    async def errors(self) -> str:
        """Returns all that it writes to standard error, which is no log."""
        return (await self._stderr.read()).decode()

    def events(self) -> list[str]:
        return [record["event"] for record in self.log]


async def reader(pipe: IO[bytes] | None) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    made = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(made)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return made, transport


@asynccontextmanager
async def started(
    mode: str, *flags: str, popen: type[subprocess.Popen[bytes]] = processes.Popen
) -> AsyncIterator[Service]:
    process = popen(
        [sys.executable, str(PROBE), mode, *flags],
        env=os.environ | processes.ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, out = await reader(process.stdout)
    stderr, errors = await reader(process.stderr)
    try:
        yield Service(process, stdout, stderr)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        out.close()
        errors.close()


def logging(mode: str, *flags: str, **options: Any) -> AbstractAsyncContextManager[Service]:
    """Starts a probe whose log can be read."""
    return started(mode, "--log-format", "json", *flags, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_service_after_its_work(number: signal.Signals) -> None:
    async with logging("plain", "--shutdown-grace-seconds", "20") as service:
        address = (await service.event("listening"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            method: Any = channel.unary_unary("/probe.Slow/Wait")
            call = method(b"")
            assert await service.stdout.readline() == b"entered\n"
            service.process.send_signal(number)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await call == b"finished"
        assert await service.finish() == 0
        assert await service.stdout.read() == b"draining 20.0\n"
    assert "shutting down" in service.events()


async def test_a_drain_that_does_not_end_is_cut_short() -> None:
    async with logging("stuck", "--shutdown-grace-seconds", "0.2") as service:
        await service.event("listening")
        service.process.send_signal(signal.SIGTERM)
        assert await service.finish() == 0
    assert "drain cut short" in service.events()


async def test_a_second_signal_leaves_at_once() -> None:
    async with logging("stuck", "--shutdown-grace-seconds", "50") as service:
        await service.event("listening")
        service.process.send_signal(signal.SIGTERM)
        await service.event("shutting down")
        service.process.send_signal(signal.SIGINT)
        assert await service.finish() == 128 + signal.SIGINT
    assert "shutdown forced" in service.events()


async def test_signals_that_come_while_it_writes_to_its_log() -> None:
    async with logging("logging", "--shutdown-grace-seconds", "50") as service:
        assert await service.finish() == 128 + signal.SIGINT
    assert "line logged" in service.events()
    assert "shutdown forced" in service.events()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", ["loading", "importing"])
async def test_before_it_serves_a_signal_ends_it_at_once(mode: str, number: signal.Signals) -> None:
    """The start that is interrupted would take hours."""
    async with logging(mode) as service:
        line = await service.stdout.readline()
        service.process.send_signal(number)
        assert await service.finish() == 0
    assert [(record["event"], record.get("reason")) for record in service.log] == [
        ("starting", None),
        ("start interrupted", number.name),
    ]
    if mode == "loading":
        for pid in map(int, line.split()):
            await asyncio.to_thread(eventually, lambda pid=pid: ended(pid), "its child has ended")


async def test_the_first_line_tells_build_and_settings_and_the_next_what_nothing_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAFTWIRE_MAX_CONECTIONS", "7")
    monkeypatch.setenv("DRAFTWIRE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("DRAFTWIRE_GATEWAY_LISTEN", "127.0.0.1:1")  # a variable of the gateway
    async with logging("broken", "--listen", "127.0.0.1:0") as service:
        assert await service.finish() == 1
    starting, unknown, unused, _ = service.log
    assert (starting["event"], starting["build"]) == ("starting", f"draftwire {__version__}")
    assert starting["settings"] == {"listen": "127.0.0.1:0", "log_format": "json", "max_connections": 8}
    assert (unknown["level"], unknown["event"]) == ("warning", "unknown variable ignored")
    assert (unknown["variable"], unknown["did_you_mean"]) == ("DRAFTWIRE_MAX_CONECTIONS", "DRAFTWIRE_MAX_CONNECTIONS")
    assert unused["level"] == "warning" and unused["event"].startswith("GPU left unused; the model runs on the CPU")
    assert unused["reason"] == "a driver that is too old"


async def test_a_failed_task_ends_the_service_with_status_1() -> None:
    async with logging("task") as service:
        assert await service.finish() == 1
    [failed] = [record for record in service.log if record["event"] == "background task failed"]
    assert failed["task"] == "failing"
    assert failed["exception"][0]["exc_value"] == "a task gave up"
    [down] = [record for record in service.log if record["event"] == "shutting down"]
    assert down["reason"] == "RuntimeError: a task gave up"


async def test_a_lack_of_memory_while_loading_is_one_line() -> None:
    async with logging("memory") as service:
        assert await service.finish() == 1
    *_, record = service.log
    assert record["event"] == "cannot start"
    assert record["reason"].startswith("out of memory; less is needed with fewer --kv-slots")
    assert record["reason"].endswith("you tried to allocate 9 bytes)")
    assert "exception" not in record


async def test_a_cause_the_operator_can_mend_is_one_line() -> None:
    async with logging("unfit") as service:
        assert await service.finish() == 1
    starting, record = service.log
    assert starting["event"] == "starting"
    assert (record["event"], record["reason"]) == ("cannot start", "no model at /nowhere")
    assert "exception" not in record


async def test_a_fault_has_its_traceback() -> None:
    async with logging("broken") as service:
        assert await service.finish() == 1
    *_, record = service.log
    assert record["exception"][0]["exc_type"] == "KeyError"


async def test_a_port_in_use_ends_the_second_service() -> None:
    async with logging("plain") as first:
        address = (await first.event("listening"))["address"]
        async with logging("plain", "--listen", address) as second:
            assert await second.finish() == 1
        _, record = second.log
        assert record["reason"] == f"cannot listen on {address}: Address already in use"


async def test_bad_settings_end_with_status_2() -> None:
    async with started("plain", "--listen", "nowhere") as service:
        error = await service.errors()
        assert service.process.wait() == 2
    assert error == "probe_service.py: --listen: must be HOST:PORT ([HOST]:PORT for IPv6), got 'nowhere'\n"
