"""The addresses to serve on."""

import asyncio
import socket

import pytest

from draftwire.cli.failure import Failure
from draftwire_tools.serve import ports
from draftwire_tools.serve.ports import listen_address, reachable, verifier_address

ENDPOINT = "127.0.0.1:1"


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Failure, match=f"--listen: cannot listen on {address}: another process listens there"):
            listen_address("--listen", address)
    assert listen_address("--listen", address) == address


def test_port_0_is_a_free_one() -> None:
    assert listen_address("--listen", "127.0.0.1:0") != "127.0.0.1:0"


@pytest.mark.parametrize("address", ["", "8000", "localhost", "localhost:", "localhost:http", "127.0.0.1:70000"])
def test_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="--listen: expected HOST:PORT"):
        listen_address("--listen", address)


@pytest.mark.parametrize("host", ["a" * 80, "a..b", "."])
def test_a_host_that_is_none_is_told_with_the_flag(host: str) -> None:
    with pytest.raises(Failure, match=r"^--listen: cannot listen on "):
        listen_address("--listen", f"{host}:80")


def test_the_verifier_is_where_commands_look_for_it_unless_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(ports, "USUAL_VERIFIER", usual)
        assert verifier_address(None, ENDPOINT) != usual
    assert verifier_address(None, ENDPOINT) == usual
    assert verifier_address(None, usual) != usual


async def test_how_this_machine_reaches_it() -> None:
    assert reachable("0.0.0.0:8000") == "127.0.0.1:8000"
    assert reachable("192.0.2.1:8000") == "192.0.2.1:8000"
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "::", 0)  # as the gateway's
    async with server:
        host, _, port = reachable(f"[::]:{server.sockets[0].getsockname()[1]}").rpartition(":")
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
