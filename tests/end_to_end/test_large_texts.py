"""A small part of benchmarks/faults/fuzz_texts.py: large texts are refused unread, and a bystander is served."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest

from benchmarks.harness.process_usage import Usage
from draftwire import Client, ContextExceededError
from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

TEXT = "def f(x):\n    return x + 1\n" * (15_000_000 // 26)
CALLERS = 8
MOST_GROWTH = 1_500_000_000
"""Bytes: a few copies of the data in transit. Tokenizing a text takes fifty times its size."""
LEFT = 150_000_000
"""Bytes of growth that may remain in the end."""


def resident(service: ServiceProcess) -> int:
    usage = Usage.of(service.pid)
    assert usage is not None
    return usage.rss_bytes


class Watch(threading.Thread):
    """Records the peak resident memory of a service until `stop` is set."""

    def __init__(self, service: ServiceProcess) -> None:
        super().__init__(daemon=True)
        self._service = service
        self.peak = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.02):
            self.peak = max(self.peak, resident(self._service))


REQUESTS: dict[str, Callable[..., Any]] = {
    "Generate": partial(pb.GenerateRequest, max_tokens=1),
    "Tokenize": pb.TokenizeRequest,
}


def refusal(address: str, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    """Returns code and message of a refused call."""
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        path = f"/draftwire.v1.VerifierService/{method}"
        with pytest.raises(grpc.RpcError) as caught:
            if method == "Generate":
                list(channel.unary_stream(path)(data, timeout=LONG_PATIENCE))
            else:
                channel.unary_unary(path)(data, timeout=LONG_PATIENCE)
    error: grpc.Call = caught.value  # type: ignore[assignment]
    return error.code(), error.details() or ""


def test_the_sdk_tells_the_field_and_the_sizes(client: Client) -> None:
    with pytest.raises(ContextExceededError, match=f"prompt: has {len(TEXT)} bytes") as caught:
        client.generate(TEXT)
    assert caught.value.fields == ("text",)
    with pytest.raises(ContextExceededError) as caught:
        client.tokenize(TEXT)
    assert caught.value.fields == ("text",)
    with pytest.raises(ContextExceededError) as caught:
        client.detokenize([5] * 3000)
    assert caught.value.fields == ("token_ids",)


@pytest.mark.slow
class TestManyAtOnce:
    @pytest.mark.parametrize("method", REQUESTS)
    def test_large_texts_are_refused_and_a_bystander_is_served(self, services: Services, method: str) -> None:
        service = services.verifier()
        with Client(service.address, timeout=LONG_PATIENCE) as client:
            expected = client.generate("def f(x):", max_tokens=8, temperature=0.0, ignore_eos=True).token_ids
            before, watch = resident(service), Watch(service)
            watch.start()
            data = REQUESTS[method](text=TEXT).SerializeToString()
            with ThreadPoolExecutor(CALLERS) as threads:
                calls = [threads.submit(refusal, service.address, method, data) for _ in range(CALLERS)]
                served = 0
                while served == 0 or not all(call.done() for call in calls):
                    output = client.generate("def f(x):", max_tokens=8, temperature=0.0, ignore_eos=True)
                    assert output.token_ids == expected
                    served += 1
                details = [call.result() for call in calls]
            watch.stop.set()
            watch.join()
            for code, message in details:
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert f"text: has {len(TEXT)} bytes" in message
            assert watch.peak - before < MOST_GROWTH
            deadline = time.monotonic() + LONG_PATIENCE
            while resident(service) - before > LEFT:
                assert time.monotonic() < deadline, "the memory of large messages is not given back"
                time.sleep(0.1)
