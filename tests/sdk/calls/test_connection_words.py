"""Errors of failing connections, to real sockets that each do one thing wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from draftwire import AsyncClient, Client, DeadlineExceededError, ErrorReason, RetryPolicy, UnavailableError
from draftwire._calls.error_messages import connection_words
from tests.harness.certificates import Authority
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK

ONCE = RetryPolicy(attempts_per_address=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def credentials(authority: Authority) -> grpc.ServerCredentials:
    pair = authority.issue("server")
    return grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])


@contextmanager
def served(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """A gRPC server without any service."""
    server = grpc.server(ThreadPoolExecutor(2))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@contextmanager
def free_port() -> Iterator[int]:
    """A bound port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def failure_of(address: str, **options: object) -> UnavailableError:
    with Client(address, retry=ONCE, timeout=PATIENCE, **options) as client, pytest.raises(UnavailableError) as caught:
        # type: ignore[arg-type]
        client.model_info()
    return caught.value


def test_nothing_listens() -> None:
    with free_port() as port:
        error = failure_of(f"localhost:{port}")
        assert str(error) == f"no answer from localhost:{port}: nothing listens at localhost:{port}"
        assert error.details.startswith("failed to connect to all addresses")
        assert isinstance(error.raw, grpc.RpcError)
        assert isinstance(error.__context__, grpc.RpcError)
        with (
            Client(f"127.0.0.1:{port}", retry=QUICK) as client,
            pytest.raises(UnavailableError, match=f"nothing listens at 127.0.0.1:{port}") as caught,
        ):
            client.generate("x")
        assert caught.value.partial is None


async def test_nothing_listens_for_the_asyncio_client() -> None:
    with free_port() as port:
        async with AsyncClient(f"127.0.0.1:{port}", retry=QUICK) as client:
            for call in (client.model_info(), client.generate("x")):
                with pytest.raises(UnavailableError, match=f"nothing listens at 127.0.0.1:{port}"):
                    await call


def test_ipv6_is_shown_as_it_was_written() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    error = failure_of("[::1]:1")
    assert str(error) == "no answer from [::1]:1: nothing listens at [::1]:1"
    assert "%5B" not in str(error)


def test_a_name_that_nobody_has() -> None:
    error = failure_of("no-such-host.invalid:50051", insecure=True)
    assert str(error).endswith("the host name of no-such-host.invalid:50051 cannot be resolved")


def test_in_the_clear_to_a_port_with_tls(authority: Authority) -> None:
    with served(credentials(authority)) as address:
        assert "it may expect TLS (tls, --tls-ca)" in str(failure_of(address))


def test_tls_to_a_port_in_the_clear(authority: Authority) -> None:
    with served() as address:
        assert f"{address} does not speak TLS" in str(failure_of(address, tls=authority.tls()))


def test_a_certificate_of_somebody_else(authority: Authority, tmp_path: Path) -> None:
    with served(credentials(Authority(tmp_path))) as address:
        assert f"the certificate of {address} is not trusted (" in str(failure_of(address, tls=authority.tls()))


def test_what_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(1024)
                    taken.sendall(b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\n\r\n" * 4)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = failure_of(f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
    assert "does not speak gRPC" in str(error)


def test_a_timeout_says_what_ran_out_and_what_came_before() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, retry=ONCE) as client, pytest.raises(DeadlineExceededError) as caught:
            client.model_info(timeout=0.2)
        assert caught.value.message == f"timeout of 0.2 s ran out before {address} answered"
        assert caught.value.reason is ErrorReason.DEADLINE_EXCEEDED
    patient = RetryPolicy(attempts_per_address=10**6, initial_backoff=0.01, max_backoff=0.01)
    with free_port() as port, Client(f"127.0.0.1:{port}", retry=patient) as client:
        for seconds in (0.3, 3, 30):  # on a busy machine it may expire before the first attempt has failed
            with pytest.raises(DeadlineExceededError) as caught:
                client.generate("x", timeout=seconds)
            if "nothing" in caught.value.message:
                break
    assert f": nothing listens at 127.0.0.1:{port}" in caught.value.message
    assert caught.value.partial is None


SECOND_AT_THE_DEADLINE = RetryPolicy(attempts_per_address=2, initial_backoff=60, max_backoff=60)


def test_no_attempt_begins_when_the_timeout_has_run_out() -> None:
    """The second one would fail at once, as the connection has, and be reported in place of the timeout."""
    with free_port() as port, Client(f"127.0.0.1:{port}", retry=SECOND_AT_THE_DEADLINE) as client:
        for _ in range(3):
            for call in (client.model_info, lambda timeout: client.generate("x", timeout=timeout)):
                with pytest.raises(DeadlineExceededError, match=r"timeout of 0\.2 s ran out"):
                    call(timeout=0.2)


async def test_no_attempt_of_the_asyncio_client_begins_when_the_timeout_has_run_out() -> None:
    with free_port() as port:
        async with AsyncClient(f"127.0.0.1:{port}", retry=SECOND_AT_THE_DEADLINE) as client:
            for _ in range(3):
                for call in (client.model_info(timeout=0.2), client.generate("x", timeout=0.2)):
                    with pytest.raises(DeadlineExceededError, match=r"timeout of 0\.2 s ran out"):
                        await call


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ("Socket closed", "the connection to a:1 broke"),
        ("GOAWAY received", "the connection to a:1 broke"),
        ("the service is full of water", None),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:7: Something New",
            "no connection to a:1: Something New",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: connection attempt timed out "
            "before receiving SETTINGS frame",
            "a:1 does not answer",
        ),
    ],
)
def test_words(details: str, told: str | None) -> None:
    assert connection_words(details, "a:1", encrypted=False) == told
