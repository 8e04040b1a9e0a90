"""Channels are reused and do not accumulate."""

import grpc
import pytest

from draftwire import Client
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
