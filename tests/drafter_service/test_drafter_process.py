"""The real process over loopback."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire.v1 import (
    drafter_pool_service_pb2,
    drafter_pool_service_pb2_grpc,
    drafter_service_pb2,
    drafter_service_pb2_grpc,
)
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc.grpc_stream import open_call
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.harness import processes
from tests.harness.drafter.verifier_side import VerifierSide
from tests.harness.plain_channel import open_channel
from tests.harness.waiting import LONG_PATIENCE, PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
QUICK = "tests.harness.drafter.quick_drafter"


class Drafter:
    """A running drafter service and its log."""

    def __init__(self, process: subprocess.Popen[bytes], lines: asyncio.StreamReader) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._lines = lines

    async def event(self, name: str) -> dict[str, Any]:
        """Reads the log up to an event."""
        async with asyncio.timeout(LONG_PATIENCE):
            async for line in self._lines:
                self.log.append(json.loads(line))
                if self.log[-1]["event"] == name:
                    return self.log[-1]
        raise AssertionError(f"the service ended without {name!r}: {self.log}")

    async def finish(self) -> int:
        """Reads the rest of the log and returns the exit status."""
        async with asyncio.timeout(LONG_PATIENCE):
            async for line in self._lines:
                self.log.append(json.loads(line))
            return await asyncio.to_thread(self.process.wait)


@asynccontextmanager
async def started(
    *flags: str,
    popen: type[subprocess.Popen[bytes]] = processes.Popen,
    program: Sequence[str] = ("drafter_service",),
) -> AsyncIterator[Drafter]:
    process = popen(
        [sys.executable, "-m", *program, "--log-format", "json", "--threads", "1", *flags],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        stderr=subprocess.PIPE,
    )
    lines = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), process.stderr
    )
    try:
        yield Drafter(process, lines)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        pipe.close()


class Pool(drafter_pool_service_pb2_grpc.DrafterPoolServiceServicer):
    """The part of a verifier with which drafters register."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue(100)

    async def RegisterDrafter(self, request: Any, context: Any) -> Any:
        self.requests.put_nowait(request)
        return drafter_pool_service_pb2.RegisterDrafterResponse(heartbeat_interval=Duration(seconds=60))

    async def next(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return await self.requests.get()


@asynccontextmanager
async def pool() -> AsyncIterator[tuple[Pool, str]]:
    servicer = Pool()
    server = ServiceServer(ServiceSettings())
    server.add(drafter_pool_service_pb2_grpc.add_DrafterPoolServiceServicer_to_server, servicer)
    await server.start()
    try:
        yield servicer, server.address
    finally:
        await server.stop(0)


async def check_life(checkpoint: Path, popen: type[subprocess.Popen[bytes]]) -> None:
    flags = ("--model", str(checkpoint), "--listen", "127.0.0.1:0", "--name", "tiny")
    async with (
        pool() as (registrations, verifier_address),
        started(*flags, "--verifier", verifier_address, popen=popen) as service,
    ):
        loaded = await service.event("model loaded")
        assert loaded["kv_cache_mib"] > 0
        address = (await service.event("listening"))["address"]
        registered = await registrations.next()
        assert (registered.address, registered.name, registered.leaving) == (address, "tiny", False)
        async with open_channel(address, 16 * 1024 * 1024) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service="draftwire.v1.DrafterService"))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            stub: Any = drafter_service_pb2_grpc.DrafterServiceStub(channel)
            info = (
                await stub.GetModelInfo(drafter_service_pb2.DrafterServiceGetModelInfoRequest(), timeout=PATIENCE)
            ).info
            assert info.model.model_id == checkpoint.name
            assert info.model.architecture == "LlamaForCausalLM"
            assert info.model.bit_exact
            assert len(info.model.tokenizer_sha256) == 64
            async with open_call(stub.Draft) as stream:
                verifier = VerifierSide(stream)
                assert await verifier.hello(model=info.model) == info
                await verifier.open(1, [4, 5, 6])
                await verifier.until(lambda: verifier.mirrors[1].tree.size >= 3)
                await verifier.commit({1: verifier.mirrors[1].best_path()[:2]})
                await verifier.until(lambda: verifier.mirrors[1].tree.size >= 3)
                request = drafter_service_pb2.DrafterServiceGetModelInfoRequest()
                status = None
                while not status:  # absent while the drafting thread is too busy to report
                    answer = await stub.GetModelInfo(request, timeout=10)
                    status = answer.status if answer.HasField("status") else None
                [share] = status.verifiers
                assert (share.name, share.weight, share.streams, share.open_sequences) == ("127.0.0.1", 1.0, 1, 1)
                assert share.rows > 3 and share.drafted_nodes >= 3

                service.process.send_signal(signal.SIGTERM)
                assert (await registrations.next()).leaving
                async with asyncio.timeout(PATIENCE):
                    async for _ in stream:  # until the clean end
                        pass
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await service.finish() == 0
    assert not [line for line in service.log if line["level"] in ("error", "critical")], service.log


async def test_a_drafters_life(checkpoint: Path) -> None:
    await check_life(checkpoint, processes.Popen)


async def test_what_the_operator_can_mend_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with (
            started("--model", str(checkpoint), "--listen", address) as refused,
            started("--model", str(tmp_path), "--listen", "127.0.0.1:0") as empty,
        ):
            for service, told in ((refused, address), (empty, str(tmp_path))):
                assert await service.finish() == 1
                last = service.log[-1]
                assert last["event"] == "cannot start"
                assert told in last["reason"]
                assert "\n" not in last["reason"]
                assert "exception" not in last
    assert not any(line["event"] == "loading started" for line in refused.log)  # the port is checked first


async def load_model(stub: Any, model: Path) -> Any:
    """Calls LoadModel; returns the load once it has ended."""
    answer = await stub.LoadModel(drafter_service_pb2.LoadModelRequest(model=str(model)), timeout=PATIENCE)
    assert answer.load.state == drafter_service_pb2.MODEL_LOAD_STATE_LOADING
    async with asyncio.timeout(PATIENCE):
        while True:
            request = drafter_service_pb2.DrafterServiceGetModelInfoRequest()
            load = (await stub.GetModelInfo(request, timeout=PATIENCE)).last_load
            if load.state != drafter_service_pb2.MODEL_LOAD_STATE_LOADING:
                return load
            await asyncio.sleep(0.05)


async def test_another_model_in_a_running_drafter(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    quick = (QUICK, str(tmp_path / "marker"))
    async with started("--model", str(checkpoint), "--listen", "127.0.0.1:0", program=quick) as service:
        address = (await service.event("listening"))["address"]
        async with open_channel(address, 16 * 1024 * 1024) as channel:
            stub: Any = drafter_service_pb2_grpc.DrafterServiceStub(channel)
            async with open_call(stub.Draft) as old_stream:
                old = VerifierSide(old_stream)
                assert (await old.hello()).model.model_id == checkpoint.name
                await old.open(1, [4, 5, 6])
                failed = await load_model(stub, tmp_path / "nothing")
                assert failed.state == drafter_service_pb2.MODEL_LOAD_STATE_FAILED
                assert "nothing" in failed.error.message

                loaded = await load_model(stub, other)
                assert loaded.state == drafter_service_pb2.MODEL_LOAD_STATE_SERVING
                await old.until(lambda: old.replaced)
                assert old.replaced[0].model_id == other.name
                assert old.replaced[0].bit_exact  # the self-test was run
                async with open_call(stub.Draft) as new_stream:
                    new = VerifierSide(new_stream)
                    assert (await new.hello()).model == old.replaced[0]
                    await new.open(1, [4, 5, 6])
                    await new.until(lambda: new.mirrors[1].tree.size >= 3)
                    await old.commit({1: [9]})
                    await old.until(lambda: old.mirrors[1].tree.size >= 3)
                    await old.end()
                    await service.event("model released")
                    await new.commit({1: [9]})
                    await new.until(lambda: new.mirrors[1].tree.size >= 3)
        service.process.send_signal(signal.SIGTERM)
        assert await service.finish() == 0
    assert not [line for line in service.log if line["level"] in ("error", "critical")], service.log


async def check_the_end_within_a_load(
    model: Path, marker: Path, *flags: str, program: Sequence[str] = ("drafter_service",)
) -> None:
    """Once the marker exists, a load takes ten minutes, and does not see that it is cancelled."""
    async with started("--model", str(model), "--listen", "127.0.0.1:0", *flags, program=program) as service:
        address = (await service.event("listening"))["address"]
        await asyncio.to_thread(marker.touch)
        async with open_channel(address, 16 * 1024 * 1024) as channel:
            stub: Any = drafter_service_pb2_grpc.DrafterServiceStub(channel)
            await stub.LoadModel(drafter_service_pb2.LoadModelRequest(model=str(model)), timeout=PATIENCE)
            async with asyncio.timeout(PATIENCE):
                while not marker.with_suffix(".entered").exists():  # noqa: ASYNC110 - made by another process
                    await asyncio.sleep(0.05)
            async with open_call(stub.Draft) as stream:  # it serves meanwhile
                verifier = VerifierSide(stream)
                await verifier.hello()
                await verifier.open(1, [4, 5, 6])
                await verifier.until(lambda: verifier.mirrors[1].tree.size >= 3)
        service.process.send_signal(signal.SIGTERM)
        assert await service.finish() == 0
    assert not [line for line in service.log if line["level"] in ("error", "critical")], service.log


async def test_the_end_within_a_load(checkpoint: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    await check_the_end_within_a_load(checkpoint, marker, program=(QUICK, str(marker)))


CONFIGURATION = """
import pathlib, time
from transformers import LlamaConfig

class SlowConfig(LlamaConfig):
    model_type = "slow_llama"

    def __init__(self, **fields):
        marker = pathlib.Path({marker!r})
        if marker.exists():
            marker.with_suffix(".entered").touch()
            time.sleep(600)
        super().__init__(**fields)
"""
MODELING = """
from transformers import LlamaForCausalLM
from .configuration_slow import SlowConfig

class SlowForCausalLM(LlamaForCausalLM):
    config_class = SlowConfig
"""


@pytest.mark.slow
class TestAsUsersStartIt:
    """In a Python process of its own, which imports everything itself."""

    async def test_a_drafters_life(self, checkpoint: Path) -> None:
        await check_life(checkpoint, subprocess.Popen)

    async def test_the_end_within_a_load_of_the_checkpoints_own_code(
        self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
        slow, marker = tmp_path / "slow", tmp_path / "marker"
        shutil.copytree(checkpoint, slow)
        config = json.loads((slow / "config.json").read_text()) | {
            "model_type": "slow_llama",
            "auto_map": {
                "AutoConfig": "configuration_slow.SlowConfig",
                "AutoModelForCausalLM": "modeling_slow.SlowForCausalLM",
            },
        }
        (slow / "config.json").write_text(json.dumps(config))
        (slow / "configuration_slow.py").write_text(CONFIGURATION.format(marker=str(marker)))
        (slow / "modeling_slow.py").write_text(MODELING)
        await check_the_end_within_a_load(slow, marker, "--trust-remote-code")
