"""Verifiers of one model, with and without the compiled library: a text never moves from one kind to the other."""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from draftwire import Client, GenerationStream, NumericsMismatchError, RetryPolicy, Speculation, VerifierInfo
from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels.library import LIBRARY, available_kernels
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, eventually, sometimes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library"),
]

PROMPT = "def read_config(path):\n"
PARAMETERS: dict[str, Any] = {"max_tokens": 800, "ignore_eos": True, "temperature": 1.0, "seed": 3}
BFLOAT16 = ("--dtype", "bfloat16")
ANEW = RetryPolicy(on_other_numerics="restart")


def told(service: ServiceProcess) -> VerifierInfo:
    with Client(service.address, timeout=LONG_PATIENCE) as client:
        return client.model_info()


@pytest.fixture(scope="module")
def other(module_services: Services) -> ServiceProcess:
    """A verifier with torch's numerics."""
    return module_services.verifier("target", *BFLOAT16, "--kernels", "torch")


@pytest.fixture
def begin(services: Services) -> Callable[[], ServiceProcess]:
    return lambda: services.verifier("target", *BFLOAT16)


def goes_on(
    first: ServiceProcess,
    second: ServiceProcess,
    other: ServiceProcess,
    begin: Callable[[], ServiceProcess],
    tokens: int = 800,
) -> None:
    """Checks that a request goes on at the second verifier when the first is lost."""
    asked = PARAMETERS | {"max_tokens": tokens}
    infos = [told(each) for each in (first, second)]
    assert infos[0].fingerprint == infos[1].fingerprint
    assert infos[0].bit_exact and infos[1].bit_exact
    assert infos[0].numerics == infos[1].numerics, [each.numerics_description for each in infos]
    with Client(second.address, timeout=LONG_PATIENCE) as client:
        expected = client.generate(PROMPT, **asked)

    def play() -> bool:
        nonlocal first
        addresses = [first.address, f"{other.address}?weight=0", f"{second.address}?weight=0"]
        with Client(addresses, timeout=LONG_PATIENCE) as client, client.stream(PROMPT, **asked) as stream:
            next(stream)
            first.kill()
            for _ in stream:
                pass
        assert stream.result.token_ids == expected.token_ids
        assert stream.result.text == expected.text
        first = first if stream.result.resumes else begin()
        return stream.result.resumes == 1

    sometimes(play, "it was under way")


def refusal(stream: GenerationStream) -> str:
    """Returns the error of a stream; empty if the stream ended before it broke off."""
    try:
        for _ in stream:
            pass
    except NumericsMismatchError as error:
        return str(error)
    return ""


def events(url: str) -> list[dict[str, Any]]:
    """Returns the gateway's response to a streaming request."""

    def lines() -> Iterator[str]:
        asked = {"prompt": PROMPT, "stream": True} | PARAMETERS
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=LONG_PATIENCE) as response:
            yield from response.iter_lines()

    said = [line.removeprefix("data: ") for line in lines() if line.startswith("data: ")]
    return [json.loads(line) for line in said if line != "[DONE]"]


def check_forced_kernels(kernels: Kernels, services: Services, good_drafter: str) -> None:
    service = services.verifier("target", *BFLOAT16, "--kernels", kernels)
    info = told(service)
    (ready,) = (event for event in service.events() if event["event"] == "model loaded")
    assert (ready["kernels"], ready["numerics"], info.bit_exact) == (kernels, info.numerics, True)
    asked = PARAMETERS | {"max_tokens": 40}
    with Client(service.address, timeout=LONG_PATIENCE) as client:
        plain = client.generate(PROMPT, speculation=Speculation(enabled=False), **asked)
        client.drafters.attach(good_drafter)
        drafted = client.generate(PROMPT, **asked)
    assert drafted.token_ids == plain.token_ids


def test_forced_kernels_tell_their_numerics_and_draft_exactly(services: Services, good_drafter: str) -> None:
    check_forced_kernels(available_kernels()[-1], services, good_drafter)


@pytest.mark.slow
class TestOtherNumerics:
    @pytest.mark.parametrize("kernels", available_kernels()[:-1])
    def test_forced_kernels_tell_their_numerics_and_draft_exactly(
        self, kernels: Kernels, services: Services, good_drafter: str
    ) -> None:
        check_forced_kernels(kernels, services, good_drafter)

    def test_a_request_goes_on_where_the_numerics_are_equal(
        self, other: ServiceProcess, begin: Callable[[], ServiceProcess]
    ) -> None:
        first, second = begin(), begin()
        lasting, info = told(first), told(other)
        assert lasting.fingerprint == info.fingerprint
        assert lasting.numerics != info.numerics
        assert "no compiled library" in info.numerics_description
        (ready,) = (event for event in other.events() if event["event"] == "model loaded")
        assert (ready["kernels"], ready["numerics"]) == ("torch", info.numerics)
        goes_on(first, second, other, begin)

    @pytest.mark.skipif(len(available_kernels()) < 3, reason="there is one kind of kernels here")
    def test_a_request_goes_on_in_plain_c_where_weights_are_in_blocks(self, services: Services) -> None:
        """Integer products, and all code around them, give the same bits with all kernels."""

        def begin() -> ServiceProcess:
            return services.verifier("target", "--weights", "q4_0")

        first, second = begin(), services.verifier("target", "--weights", "q4_0", "--kernels", "baseline")
        other = services.verifier("target", "--weights", "q4_0", "--kernels", "torch")
        assert told(first).numerics != told(other).numerics
        assert told(first).dtype == "q4_0"
        prompts = [f"def read_config_{index}(path):\n" for index in range(100)]
        asked = {"max_tokens": 4, "ignore_eos": True, "temperature": 1.0, "seed": list(range(100))}
        found = []
        for each in (first, second):
            with Client(each.address, timeout=LONG_PATIENCE) as client:
                found.append([result.token_ids for result in client.generate_batch(prompts, **asked)])
        assert found[0] == found[1]
        goes_on(first, second, other, begin, tokens=60)

    def test_it_goes_on_nowhere_else(
        self, other: ServiceProcess, begin: Callable[[], ServiceProcess], services: Services
    ) -> None:
        """Streams of the SDK and of the gateway end with an error; a whole result restarts if its caller allows it."""
        with Client(other.address, timeout=LONG_PATIENCE) as client:
            expected = client.generate(PROMPT, **PARAMETERS)

        def play() -> bool:
            lost = begin()
            info = told(lost)
            addresses = [lost.address, f"{other.address}?weight=0"]
            gateway = services.gateway("--verifier", addresses[0], "--verifier", addresses[1])
            try:
                with (
                    Client(addresses, timeout=LONG_PATIENCE) as client,
                    Client(addresses, timeout=LONG_PATIENCE, retry=ANEW) as patient,
                    ThreadPoolExecutor(2) as pool,
                    client.stream(PROMPT, **PARAMETERS) as stream,
                ):
                    whole = pool.submit(patient.generate, PROMPT, **PARAMETERS)
                    through = pool.submit(events, gateway.url)
                    eventually(
                        lambda: client.model_info().engine.running_sequences == 3 or whole.done() or through.done(),
                        "all are under way",
                    )
                    next(stream)
                    lost.kill()
                    refused = refusal(stream)
                    result, said = whole.result(LONG_PATIENCE), through.result(LONG_PATIENCE)
            finally:
                gateway.stop()
            assert all(each.address in refused for each in (lost, other)) or not refused
            if not (refused and result.restarts and "error" in said[-1]):
                return False
            both = hashlib.sha256(f"{info.fingerprint} {info.numerics}".encode()).hexdigest()
            assert said[0]["system_fingerprint"] == f"fp_{both[:16]}"
            assert result.token_ids == expected.token_ids
            assert result.text == expected.text
            assert "cannot continue" in said[-1]["error"]["message"]
            return True

        sometimes(play, "all were under way when it was lost")
