"""A drafter that knows a verifier attaches itself, and is detached when it is gone."""

import signal
from typing import Any

import grpc
import pytest

from draftwire import Client, Drafter, Speculation
from draftwire.v1.drafter_pool_service_pb2 import RegisterDrafterRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceStub
from tests.harness.services.services import Services
from tests.harness.suite.engines import ON_VLLM
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.processes


def the_only_one(client: Client) -> Drafter | None:
    return next((drafter for drafter in client.drafters.list() if drafter.state == "ready"), None)


def test_it_comes_and_takes_its_leave(client: Client, services: Services) -> None:
    service = services.drafter("draft", "--verifier", client.address, "--name", "announced")
    drafter = eventually(lambda: the_only_one(client), "it has attached itself")
    assert (drafter.name, drafter.address, drafter.announced) == ("announced", service.address, True)
    assert drafter.model is not None
    assert drafter.model.model_id == "draft"

    def drafts() -> bool:
        with client.stream(
            "def f", max_tokens=200, ignore_eos=True, seed=1, speculation=Speculation(planning="always")
        ) as stream:
            return any("announced" in chunk.sources for chunk in stream)

    sometimes(drafts, "what it drafts is accepted")
    service.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.drafters.list() == [], "it has taken its leave")
    assert service.process.wait(PATIENCE) == 0
    [announcing] = [event for event in service.events() if event["event"] == "announcements started"]
    assert (announcing["verifiers"], announcing["because"]) == ([client.address], "of --verifier")


def test_it_announces_itself_to_each_of_its_verifiers(client: Client, services: Services) -> None:
    second = services.verifier("target")
    nobody = ("--verifier", "127.0.0.1:1")  # an unreachable verifier does not delay the others
    told = ("--verifier", client.address, "--verifier", second.address)
    drafter = services.drafter("draft", *nobody, *told, "--name", "shared")
    with Client(second.address) as other:
        for each in (client, other):
            found = eventually(lambda each=each: the_only_one(each), "it has attached itself")
            assert (found.name, found.address) == ("shared", drafter.address)
        drafter.process.send_signal(signal.SIGTERM)
        for each in (client, other):
            eventually(lambda each=each: each.drafters.list() == [], "it has taken its leave")
    assert drafter.process.wait(PATIENCE) == 0
    refused = [event for event in drafter.events() if event["event"] == "announcement failed; it is tried again"]
    assert {event["verifier"] for event in refused} == {"127.0.0.1:1"}


def test_it_is_removed_when_its_heartbeat_stays_out(client: Client, services: Services) -> None:
    service = services.drafter("draft", "--verifier", client.address)
    drafter = eventually(lambda: the_only_one(client), "it has attached itself")
    assert drafter.name == service.address
    service.kill()
    eventually(lambda: client.drafters.list() == [], "it has been removed")


def test_the_variable_of_the_command_line_announces_nobody(
    client: Client, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWIRE_VERIFIER", client.address)
    alone = services.drafter("draft")
    monkeypatch.setenv("DRAFTWIRE_ANNOUNCE_TO", client.address)
    announced = services.drafter("draft")
    assert alone.address and announced.address
    eventually(lambda: the_only_one(client), "one of them has attached itself")
    assert [drafter.address for drafter in client.drafters.list()] == [announced.address]
    [because] = [event["because"] for event in announced.events() if event["event"] == "announcements started"]
    assert because == "of DRAFTWIRE_ANNOUNCE_TO"
    former = "variable ignored"
    assert [event["level"] for event in alone.events() if event["event"] == former] == ["warning"]
    assert former not in [event["event"] for event in announced.events()]


def test_heartbeats_stay_out_of_the_log(services: Services) -> None:
    service = services.verifier("target", "--log-level", "debug")
    drafter = services.drafter("draft", "--verifier", service.address)

    def levels() -> list[str]:
        return [
            event["level"]
            for event in service.events()
            if event["event"] == "call finished" and event["method"].endswith("/RegisterDrafter")
        ]

    eventually(lambda: len(levels()) >= 3, "there were heartbeats")
    drafter.process.send_signal(signal.SIGTERM)
    assert drafter.process.wait(PATIENCE) == 0
    logged = eventually(lambda: levels() if levels()[-1] == "info" else None, "it left")
    first, *heartbeats, leave = logged[:: 2 if ON_VLLM else 1]  # the pool inside vLLM logs each call as well
    assert (first, set(heartbeats), leave) == ("info", {"debug"}, "info")


def test_only_hosts_that_may_be_announced(services: Services) -> None:
    service = services.verifier("target", "--announced-host", "localhost", "--announced-host", "10.0.0.0/8")
    with grpc.insecure_channel(service.address) as channel:
        pool: Any = DrafterPoolServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="is not among the hosts that may be announced"):
            pool.RegisterDrafter(RegisterDrafterRequest(address="169.254.169.254:80"), timeout=30)
        pool.RegisterDrafter(RegisterDrafterRequest(address="localhost:1"), timeout=30)
    with Client(service.address) as client:
        assert [drafter.address for drafter in client.drafters.list()] == ["localhost:1"]
