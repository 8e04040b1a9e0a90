"""TLS between real endpoints: who is admitted, who is not, and files that change while the server runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftwire import Tls
from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.draftwire_core.runtime.conftest import SERVICE, Probe, add_probe_to_server
from tests.harness.certificates import Authority, Pair
from tests.harness.waiting import PATIENCE


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    while True:
        yield b"."
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(pair: Pair, **settings: Any) -> AsyncIterator[str]:
    files = {name: str(value) for name, value in settings.items()}
    server = ServiceServer(ServiceSettings(tls_cert=str(pair.cert), tls_key=str(pair.key), **files))
    server.add(add_probe_to_server, Probe(unary_unary=echo, unary_stream=count))
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def call(address: str, tls: Tls | None) -> bytes:
    async with AsyncChannels(Security(tls=tls)).open(address) as channel:
        answer: bytes = await channel.unary_unary(f"/{SERVICE}/unary_unary")(b"hello", timeout=PATIENCE)
        return answer


async def fault(address: str, tls: Tls | None) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(address, tls)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(failed.value.details())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other")


async def test_a_client_that_knows_the_authority_is_served(authority: Authority) -> None:
    async with serving(authority.issue("server")) as address:
        assert await call(address, authority.tls()) == b"hello"


async def test_authorities_may_have_notes_in_utf_8(authority: Authority) -> None:
    """As the bundles of RHEL and of curl have."""
    authority.file.write_bytes("# Főtanúsítvány\n".encode() + authority.file.read_bytes())
    pair = authority.issue("server")
    async with serving(pair, tls_client_ca=authority.file) as address:
        assert await call(address, authority.tls(pair)) == b"hello"


async def test_a_client_in_the_clear_is_not(authority: Authority) -> None:
    async with serving(authority.issue("server")) as address:
        await fault(address, None)


async def test_a_server_of_another_authority_is_refused(authority: Authority, other: Authority) -> None:
    async with serving(authority.issue("server")) as address:
        assert "CERTIFICATE_VERIFY_FAILED" in await fault(address, other.tls())


async def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    async with serving(authority.issue("server", expired=True)) as address:
        assert "certificate has expired" in await fault(address, authority.tls())


async def test_a_certificate_for_another_name_is_refused_unless_that_is_expected(authority: Authority) -> None:
    async with serving(authority.issue("server", "verifier.internal")) as address:
        assert "Hostname Verification" in await fault(address, authority.tls())
        assert await call(address, authority.tls(server_name="verifier.internal")) == b"hello"


async def test_mutual_tls_takes_clients_of_its_authority_only(authority: Authority, other: Authority) -> None:
    trusted, stranger = authority.issue("client", "client.internal"), other.issue("client", "client.internal")
    async with serving(authority.issue("server"), tls_client_ca=authority.file) as address:
        assert await call(address, authority.tls(trusted)) == b"hello"
        await fault(address, authority.tls())
        await fault(address, authority.tls(stranger))


async def test_new_connections_see_new_certificates_and_old_streams_live_on(
    authority: Authority, other: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("server")
    async with serving(pair) as address, AsyncChannels(Security(tls=authority.tls())).open(address) as channel:
        stream = channel.unary_stream(f"/{SERVICE}/unary_stream")(b"")
        assert await stream.read() == b"."
        new = other.issue("server")
        pair.cert.write_bytes(new.cert.read_bytes())  # the key has not been replaced yet: the old pair stays in use
        assert await call(address, authority.tls()) == b"hello"
        pair.key.write_bytes(new.key.read_bytes())
        assert await call(address, other.tls()) == b"hello"
        assert "CERTIFICATE_VERIFY_FAILED" in await fault(address, authority.tls())
        pair.cert.unlink()
        assert await call(address, other.tls()) == b"hello"
        for _ in range(20):
            assert await stream.read() == b"."


async def test_a_client_takes_new_files_for_its_next_connection(authority: Authority, other: Authority) -> None:
    client = authority.issue("client", "client.internal")
    async with serving(authority.issue("server"), tls_client_ca=authority.file) as address:
        channels = AsyncChannels(Security(tls=authority.tls(client)))
        method = f"/{SERVICE}/unary_unary"
        first = channels.get(address)
        stream = first.unary_stream(f"/{SERVICE}/unary_stream")(b"")
        assert await stream.read() == b"."
        del first
        client.key.write_bytes(b"half")
        assert await channels.get(address).unary_unary(method)(b"1", timeout=PATIENCE) == b"1"
        stranger = other.issue("client", "client.internal")
        client.cert.write_bytes(stranger.cert.read_bytes())
        client.key.write_bytes(stranger.key.read_bytes())
        with pytest.raises(grpc.aio.AioRpcError):
            await channels.get(address).unary_unary(method)(b"2", timeout=PATIENCE)
        authority.issue("client", "client.internal")
        assert await channels.get(address).unary_unary(method)(b"3", timeout=PATIENCE) == b"3"
        for _ in range(20):
            assert await stream.read() == b"."
        stream.cancel()
        await channels.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "verifier.internal:0"])
async def test_listening_beyond_this_machine_needs_tls_or_the_flag(listen: str, authority: Authority) -> None:
    with pytest.raises(StartupError, match=r"--listen.*--tls-cert and --tls-key.*--insecure"):
        ServiceServer(ServiceSettings(listen=listen))
    ServiceServer(ServiceSettings(listen=listen, insecure=True))
    pair = authority.issue("server")
    ServiceServer(ServiceSettings(listen=listen, tls_cert=str(pair.cert), tls_key=str(pair.key)))


def test_files_that_cannot_be_used_are_told_with_their_flag(authority: Authority, tmp_path: Path) -> None:
    pair, second, junk = authority.issue("server"), authority.issue("second"), tmp_path / "junk"
    junk.write_text("junk")
    good = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    for settings, told in (
        ({"tls_cert": str(tmp_path / "none"), "tls_key": str(pair.key)}, "--tls-cert.*none: No such file"),
        ({"tls_cert": str(junk), "tls_key": str(pair.key)}, "--tls-cert.*junk"),
        ({"tls_cert": str(pair.cert), "tls_key": str(second.key)}, "--tls-key.*second.key"),
        (good | {"tls_client_ca": str(junk)}, "--tls-client-ca.*junk"),
        (good | {"accepted_tokens": str(junk)}, "--accepted-tokens.*junk is not valid TOML"),
    ):
        with pytest.raises(StartupError, match=told):
            ServiceServer(ServiceSettings(**settings))


def test_a_key_with_a_passphrase_is_refused_without_asking(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization as forms

    pair = authority.issue("server")
    key = forms.load_pem_private_key(pair.key.read_bytes(), None)
    secret = forms.BestAvailableEncryption(b"passphrase")
    pair.key.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, secret))
    with pytest.raises(StartupError, match="--tls-key"):
        ServiceServer(ServiceSettings(tls_cert=str(pair.cert), tls_key=str(pair.key)))
