"""A drafter that is told of a verifier attaches itself, and is gone when it is gone."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from draftwire import Client, Drafter
from draftwire.v1.drafter_pool_service_pb2 import RegisterDrafterRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceStub
from tests.end_to_end.waiting import PATIENCE, eventually, sometimes

if TYPE_CHECKING:
    from tests.end_to_end.conftest import RunningService


def the_only_one(client: Client) -> Drafter | None:
    return next((drafter for drafter in client.drafters.list() if drafter.state == "ready"), None)


def test_it_comes_and_takes_its_leave(client: Client, start_drafter: Callable[..., "RunningService"]) -> None:
    service = start_drafter("draft", "--verifier", client.address, "--name", "announced")
    drafter = eventually(lambda: the_only_one(client), "it has attached itself")
    assert (drafter.name, drafter.address, drafter.announced) == ("announced", service.address, True)
    assert drafter.model is not None
    assert drafter.model.model_id == "draft"

    def drafts() -> bool:
        with client.stream("def f", max_tokens=2000, ignore_eos=True, seed=1) as stream:
            return any("announced" in chunk.sources for chunk in stream)

    sometimes(drafts, "what it drafts is accepted")
    service.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.drafters.list() == [], "it has taken its leave")
    assert service.process.wait(PATIENCE) == 0


def test_it_is_removed_when_its_heartbeat_stays_out(
    client: Client, start_drafter: Callable[..., "RunningService"]
) -> None:
    service = start_drafter("draft", "--verifier", client.address)
    drafter = eventually(lambda: the_only_one(client), "it has attached itself")
    assert drafter.name == service.address
    service.kill()
    eventually(lambda: client.drafters.list() == [], "it has been removed")


def test_only_hosts_that_may_be_announced(start_verifier: Callable[..., "RunningService"]) -> None:
    service = start_verifier("target", "--announced-host", "localhost", "--announced-host", "10.0.0.0/8")
    with grpc.insecure_channel(service.address) as channel:
        pool: Any = DrafterPoolServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="is not among the hosts that may be announced"):
            pool.RegisterDrafter(RegisterDrafterRequest(address="169.254.169.254:80"), timeout=30)
        pool.RegisterDrafter(RegisterDrafterRequest(address="localhost:1"), timeout=30)
    with Client(service.address) as client:
        assert [drafter.address for drafter in client.drafters.list()] == ["localhost:1"]
