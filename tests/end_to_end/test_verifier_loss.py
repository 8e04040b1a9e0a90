"""A verifier is killed, stopped or frozen while requests run: they continue at another one, token by token."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from draftwire import AsyncClient, Client, Generation, ModelMismatchError, RetryPolicy
from tests.harness.lasting_address import lasting_address
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.processes

# Hot enough to draw multi-byte characters and tokens that are parts of one.
PARAMETERS: dict[str, Any] = {"max_tokens": 192, "ignore_eos": True, "temperature": 1.3}
PROMPTS = ["def read_config(path):\n", "# größer als «naïve» → ", "class Stack:\n", "import os\n"]
SEEDS = [3, 4, 5, 6]
BEGUN = 12
"""Number of tokens after which the verifier is lost."""


@dataclass(frozen=True)
class Undisturbed:
    """The results of undisturbed requests."""

    results: list[Generation]
    stop: str
    """A stop string that occurs late in the first output."""
    stopped: Generation


@pytest.fixture(scope="module")
def undisturbed(verifier: ServiceProcess) -> Undisturbed:
    with Client(verifier.address, timeout=PATIENCE) as client:
        results = client.generate_batch(PROMPTS, seed=SEEDS, **PARAMETERS)
        text = results[0].text
        stop = next(text[at : at + 6] for at in range(len(text) // 2, len(text)) if text.find(text[at : at + 6]) == at)
        return Undisturbed(results, stop, client.generate(PROMPTS[0], seed=SEEDS[0], stop=stop, **PARAMETERS))


def same(result: Generation, expected: Generation) -> None:
    assert result.token_ids == expected.token_ids
    assert result.text == expected.text
    assert (result.finish_reason, result.stop) == (expected.finish_reason, expected.stop)
    assert result.usage.prompt_tokens == expected.usage.prompt_tokens
    assert result.usage.completion_tokens == len(result.token_ids)
    assert 0 < result.usage.first_token_seconds <= result.usage.total_seconds
    assert result.speculation.tokens <= len(result.token_ids)
    assert result.speculation.accepted_tokens <= result.speculation.draft_tokens


def check_requests_go_on_elsewhere(
    verifier: ServiceProcess,
    good_drafter: str,
    services: Services,
    undisturbed: Undisturbed,
    number: signal.Signals,
) -> None:
    """The grace time exceeds the test's time limit: a verifier that shuts down hands over its requests at once."""

    def play() -> bool:
        """Whether requests of each kind were running when the verifier was lost."""
        lost = services.verifier("target", "--drafter", good_drafter, "--shutdown-grace-seconds", "600")
        addresses = [lost.address, f"{verifier.address}?weight=0"]
        with Client(addresses, timeout=PATIENCE) as client, ThreadPoolExecutor(2) as pool:
            eventually(lambda: client.drafters.list()[0].state == "ready", "the drafter is ready")
            batch = pool.submit(client.generate_batch, PROMPTS, seed=SEEDS, **PARAMETERS)
            with_asyncio = pool.submit(asyncio.run, asked_with_asyncio(addresses))
            running = 2 * len(PROMPTS) + 1
            eventually(
                lambda: client.model_info().engine.running_sequences == running or batch.done() or with_asyncio.done(),
                "all are under way",
            )
            stream = client.stream(PROMPTS[0], seed=SEEDS[0], stop=undisturbed.stop, **PARAMETERS)
            tokens: list[int] = []
            text = ""
            for chunk in stream:
                if len(tokens) < BEGUN <= len(tokens) + len(chunk.token_ids):
                    lost.process.send_signal(number)
                tokens += chunk.token_ids
                text += chunk.text
            same(stream.result, undisturbed.stopped)
            assert (tokens, text) == (stream.result.token_ids, stream.result.text)
            results = batch.result(PATIENCE)
            streamed, asked = with_asyncio.result(PATIENCE)
            in_time = [stream.result.resumes, sum(each.resumes for each in results)]
            in_time.append(sum(each.resumes for each in [*asked, streamed]))
            assert stream.result.resumes <= 1
            assert client.address == verifier.address or not stream.result.resumes
        expected = [*undisturbed.results, *undisturbed.results, undisturbed.results[1]]
        for found, wanted in zip([*results, *asked, streamed], expected, strict=True):
            same(found, wanted)
        if number == signal.SIGTERM:
            assert lost.process.wait(PATIENCE) == 0
            (draining,) = (event for event in lost.events() if event["event"] == "draining")
            assert draining["handed_over"] == draining["requests"] >= any(in_time)
        lost.kill()
        return all(in_time)

    sometimes(play, "requests of each kind go on elsewhere")


async def asked_with_asyncio(addresses: list[str]) -> tuple[Generation, list[Generation]]:
    async with AsyncClient(addresses, timeout=PATIENCE) as client:
        asked = asyncio.create_task(client.generate_batch(PROMPTS, seed=SEEDS, **PARAMETERS))
        stream = client.stream(PROMPTS[1], seed=SEEDS[1], **PARAMETERS)
        text = "".join([chunk.text async for chunk in stream])
        assert text == stream.result.text
        return stream.result, await asked


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_requests_go_on_elsewhere(
    verifier: ServiceProcess,
    good_drafter: str,
    services: Services,
    undisturbed: Undisturbed,
    number: signal.Signals,
) -> None:
    check_requests_go_on_elsewhere(verifier, good_drafter, services, undisturbed, number)


@pytest.mark.slow
class TestTheOnlyVerifier:
    """Each play starts another verifier, and there may be several: a request can end before its verifier does."""

    def test_it_comes_back(self, services: Services, undisturbed: Undisturbed) -> None:
        first = services.verifier("target", "--listen", lasting_address())
        patient = RetryPolicy(attempts_per_address=200, max_backoff=0.5)

        def play() -> bool:
            nonlocal first
            with Client(first.address, timeout=PATIENCE, retry=patient) as client:
                stream = client.stream(PROMPTS[0], seed=SEEDS[0], **PARAMETERS)
                next(stream)
                first.kill()
                first = services.verifier("target", "--listen", first.address)
                for _ in stream:
                    pass
            same(stream.result, undisturbed.results[0])
            return stream.result.resumes == 1

        sometimes(play, "it was under way")

    def test_another_model_is_noticed(self, verifier: ServiceProcess, services: Services) -> None:
        """The draft model has the target's tokenizer, so otherwise its tokens would go unnoticed."""

        def play() -> bool:
            other = services.verifier("draft")
            with Client([other.address, f"{verifier.address}?weight=0"], timeout=PATIENCE) as client:
                stream = client.stream(PROMPTS[0], seed=SEEDS[0], **PARAMETERS)
                next(stream)
                other.kill()
                try:
                    for _ in stream:
                        pass
                except ModelMismatchError:
                    return True
            return False  # the request ended before the loss

        sometimes(play, "it is noticed")


@pytest.mark.slow
class TestAFrozenVerifier:
    def test_requests_go_on_elsewhere(
        self,
        verifier: ServiceProcess,
        good_drafter: str,
        services: Services,
        undisturbed: Undisturbed,
    ) -> None:
        check_requests_go_on_elsewhere(verifier, good_drafter, services, undisturbed, signal.SIGSTOP)
