"""docs/security.md is accurate: its commands make working certificates and tokens, its table matches the code."""

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftwire import Tls, TokenFile
from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.security.roles import ROLES_BY_METHOD, Role
from tests.draftwire_core.runtime.conftest import SERVICE, Probe, add_probe_to_server
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[4] / "docs" / "security.md").read_text(encoding="utf-8")


async def echo(request: bytes, context: Any) -> bytes:
    return request


def run(commands: str, directory: Path) -> subprocess.CompletedProcess[str]:
    shell = ["bash", "-euc", commands]
    return subprocess.run(shell, cwd=directory, capture_output=True, text=True, timeout=PATIENCE, check=False)


async def test_the_commands_make_what_a_service_and_its_clients_need(tmp_path: Path) -> None:
    printed = ""
    for commands in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        ran = await asyncio.to_thread(run, commands, tmp_path)
        assert ran.returncode == 0, ran.stderr
        printed += ran.stdout
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(f'[me]\nsha256 = "{printed.strip()}"\nroles = ["admin"]')
    cert, key, ca = (str(tmp_path / name) for name in ("verifier.pem", "verifier.key", "ca.pem"))
    server = ServiceServer(ServiceSettings(tls_cert=cert, tls_key=key, tls_client_ca=ca, accepted_tokens=str(accepted)))
    server.add(add_probe_to_server, Probe(unary_unary=echo))
    await server.start()
    try:
        for name in (None, "verifier.internal"):
            channels = AsyncChannels(Security(tls=Tls(ca, cert, key, name), token=TokenFile(tmp_path / "me.token")))
            method = channels.get(server.address).unary_unary(f"/{SERVICE}/unary_unary")
            assert await method(b"hello", metadata=channels.metadata(), timeout=PATIENCE) == b"hello"
            with pytest.raises(grpc.aio.AioRpcError):
                await method(b"hello", timeout=PATIENCE)
            await channels.close()
    finally:
        await server.stop(0)


def test_the_table_of_roles_is_the_codes() -> None:
    head = re.search(r"^\| method \| `(\w+)` \| `(\w+)` \| `(\w+)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert head
    rows = re.findall(r"^\| `(\w+/\w+)` \| (yes|) ?\| (yes|) ?\| (yes|) ?\| (yes|) ?\|$", PAGE, re.MULTILINE)
    told = {
        f"/draftwire.v1.{method}": {Role(role) for role, may in zip(head.groups(), cells, strict=True) if may}
        for method, *cells in rows
    }
    assert told == ROLES_BY_METHOD
