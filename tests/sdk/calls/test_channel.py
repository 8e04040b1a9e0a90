"""Channels are reused and do not accumulate."""

import grpc
import pytest

from draftwire import AsyncClient, Client, RetryPolicy, UnavailableError
from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels, Channels
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE


def test_channels_are_kept_and_those_not_used_let_go() -> None:
    channels = Channels(Security())
    used = channels.get("127.0.0.1:1")
    dropped = channels.get("127.0.0.1:2")
    for port in range(1000, 1200):
        channels.get(f"127.0.0.1:{port}")
        assert channels.get("127.0.0.1:1") is used
    assert channels.get("127.0.0.1:2") is not dropped
    assert len(channels._channels) == 64
    channels.close()
    assert channels.closed


async def test_asyncio_channels_too() -> None:
    channels = AsyncChannels(Security())
    used = channels.get("127.0.0.1:1")
    for port in range(1000, 1200):
        assert isinstance(channels.get(f"127.0.0.1:{port}"), grpc.aio.Channel)
        assert channels.get("127.0.0.1:1") is used
    assert len(channels._channels) == 64
    await channels.close()


def test_a_proxy_is_not_asked_for_this_machine(verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for address in (verifier.address, verifier.address.replace("127.0.0.1", "localhost")):
        with Client(address, timeout=PATIENCE) as client:
            assert client.model_info().model_id


@pytest.mark.parametrize(("address", "anew"), [("localhost:1", True), ("127.0.0.1:1", False)])
async def test_a_name_that_was_lost_is_looked_up_by_a_new_channel(address: str, anew: bool) -> None:
    """gRPC looks a name that was unknown for minutes up again after up to two minutes, as for a health check."""
    once = RetryPolicy(attempts_per_address=1)
    with Client(address, retry=once, timeout=PATIENCE) as client:
        before = client._transport._channels.get(address)
        with pytest.raises(UnavailableError):
            client.model_info(address=address)
        assert (client._transport._channels.get(address) is not before) is anew
    async with AsyncClient(address, retry=once, timeout=PATIENCE) as asyncio_client:
        first = asyncio_client._transport._channels.get(address)
        with pytest.raises(UnavailableError):
            await asyncio_client.model_info(address=address)
        assert (asyncio_client._transport._channels.get(address) is not first) is anew
