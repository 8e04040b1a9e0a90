"""SIGTERM lets running requests finish; no request ends because a drafter is stopped or killed."""

import signal
import subprocess
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import draftwire
from draftwire import Client, RetryPolicy
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
LENGTH: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True, "temperature": 0.8, "seed": 3}
LONG = LENGTH | {"max_tokens": 300}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.Channel) -> int:
    status: int = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status
    return status


def end_of(service: ServiceProcess) -> int:
    """Returns its exit status."""
    try:
        return service.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it does not end:\n{service.log.read_text()}")


def test_a_verifier_finishes_what_runs(
    verifier: ServiceProcess,
    client: Client,
    services: Services,
    good_drafter: str,
) -> None:
    """The grace time is long, so the test fails if anything, such as a pool watcher, delays the end."""
    expected = client.generate(PROMPT, **LONG)
    ending = services.verifier("target", "--drafter", good_drafter, "--shutdown-grace-seconds", "600")
    with (
        Client(ending.address, retry=RetryPolicy(attempts_per_address=1)) as other,
        grpc.insecure_channel(ending.address) as channel,
    ):
        eventually(lambda: other.drafters.list()[0].state == "ready", "the drafter is ready")
        watch = other.drafters.watch()
        assert next(watch)[0].address == good_drafter
        assert health(channel) == SERVING
        stream = other.stream(PROMPT, **LONG)
        tokens = next(stream).token_ids
        ending.process.send_signal(signal.SIGTERM)
        eventually(lambda: health(channel) == NOT_SERVING, "health says NOT_SERVING")
        with pytest.raises(draftwire.ShuttingDownError):
            other.generate(PROMPT, max_tokens=1)
        with pytest.raises(draftwire.UnavailableError):
            while True:
                next(watch)
        for chunk in stream:
            tokens += chunk.token_ids
        assert tokens == expected.token_ids
        assert stream.result.text == expected.text
        assert stream.result.resumes == 0
    assert end_of(ending) == 0


def test_a_verifier_ends_what_does_not_finish_in_time(services: Services) -> None:
    ending = services.verifier("target", "--shutdown-grace-seconds", "0.2")
    with Client(ending.address, retry=RetryPolicy(attempts_per_address=1)) as other:
        stream = other.stream(PROMPT, **LENGTH | {"max_tokens": 2000})
        next(stream)
        ending.process.send_signal(signal.SIGTERM)
        with pytest.raises(draftwire.ShuttingDownError):
            for _ in stream:
                pass
    assert end_of(ending) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_drafter_ends_within_a_request(client: Client, services: Services, number: signal.Signals) -> None:
    expected = client.generate(PROMPT, **LENGTH).token_ids
    drafter = services.drafter()
    client.drafters.attach(drafter.address, "ending")
    tokens: list[int] = []
    signalled = False
    with client.stream(PROMPT, **LENGTH) as stream:
        for chunk in stream:
            tokens += chunk.token_ids
            if ("ending" in chunk.sources or len(tokens) > LENGTH["max_tokens"] // 2) and not signalled:
                drafter.process.send_signal(number)
                signalled = True
    assert signalled
    assert tokens == expected
    assert stream.result.resumes == 0
    assert end_of(drafter) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    state = eventually(
        lambda: next((each for each in client.drafters.list() if each.state == "unreachable"), None), "it is missed"
    )
    assert state.sequences == 0
    assert state.last_error is not None
