"""Addresses without a port, for which gRPC would use port 443."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import draftwire
from draftwire import AsyncClient, Client, EngineStatus, Verifier
from draftwire._types.address import check_address
from tests.harness.command import Command
from tests.harness.stand_ins.fake_verifier import FakeVerifier


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("localhost", "'localhost' is not the address of a service: expected HOST:PORT, for example localhost:50051"),
        ("::1:50051", r"expected HOST:PORT, with an IPv6 host in brackets, for example \[::1\]:50051"),
        ("[::1]", r"'\[::1\]' is not the address of a service: expected HOST:PORT"),
        ("localhost:", "expected HOST:PORT"),
        ("localhost:0", "with a port from 1 to 65535"),
        ("localhost:70000", "with a port from 1 to 65535"),
        ("a" * 5000, "expected HOST:PORT"),
        ("local host:1", "expected HOST:PORT"),
    ],
)
async def test_a_port_is_needed(address: str, told: str) -> None:
    makers: list[Callable[[], object]] = [
        lambda: Client(address),
        lambda: AsyncClient(address),
        lambda: Client(["127.0.0.1:1", Verifier(address)]),
        lambda: Client("127.0.0.1:1").drafters.load_state(address),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=told) as caught:
            make()
        assert len(str(caught.value)) < 300
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ValueError, match=told):
            await client.drafters.load_state(address)


@pytest.mark.parametrize(
    "address",
    ["a:1", "[::1]:50051", "127.0.0.1:65535", "unix:/tmp/x", "dns:///a:1", "ipv4:10.0.0.1:1", "[fe80::1%eth0]:1"],
)
def test_what_grpc_takes(address: str) -> None:
    check_address(address)


def test_the_command_line_says_it(command: Command) -> None:
    done = command("generate", "x", "--verifier", "localhost")
    assert done.code == 2
    assert done.err == (
        "draftwire: 'localhost' is not the address of a service: expected HOST:PORT, for example localhost:50051\n"
    )


def test_what_clients_and_answers_look_like(verifier: FakeVerifier) -> None:
    with Client(["127.0.0.1:1", verifier.address], token="secret") as client:
        assert repr(client) == f"Client(['127.0.0.1:1', '{verifier.address}'])"
        shown = repr(client.model_info(address=verifier.address))
    assert "vocab_size=128" in shown
    assert EngineStatus.__name__ not in shown
    assert len(shown) < 1000
    assert repr(AsyncClient("a:1", insecure=True)) == "AsyncClient(['a:1'])"


def test_completion_offers_the_public_names() -> None:
    assert dir(draftwire) == sorted(draftwire.__all__)
