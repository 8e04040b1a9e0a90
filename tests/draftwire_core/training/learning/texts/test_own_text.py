"""The target's own text: written by an idle verifier alone, given up for others, and seen by nobody else."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client, Prompt
from draftwire.errors import DraftwireError, UnavailableError
from draftwire.v1.verifier_service_pb2 import FollowTrafficRequest
from draftwire.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.training.learning.texts import own_text
from draftwire_core.training.learning.texts.own_text import OwnText
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.verifier.call_context import ONE
from verifier_service.servicer import VerifierServicer

PROMPTS: list[Prompt] = ["w1 w2", [5, 6, 7], "w9 w3 w4", [8, 9], [11, 3]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_text, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(own_text, "_MOST_TOKENS", 24)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[own_text._Text]:
    """The texts that have been begun."""
    found: list[own_text._Text] = []

    class Recorded(own_text._Text):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(own_text, "_Text", Recorded)
    return found


class Writing:
    """An OwnText and what it gives."""

    def __init__(
        self, client: Client, prompts: list[Prompt], quiet_seconds: float, *, probabilities: bool = False
    ) -> None:
        self.texts: list[tuple[list[int], list[int]]] = []
        self.tops: list[TopTokens] = []
        self.told: list[str] = []
        self.own = OwnText(
            client,
            prompts,
            self.take,
            tell=self.told.append,
            quiet_seconds=quiet_seconds,
            probabilities=probabilities,
        )
        self.stopped = threading.Event()

    def take(self, prompt: list[int], output: list[int], top: TopTokens) -> None:
        self.texts.append((prompt, output))
        self.tops.append(top)

    def run(self) -> None:
        """Writes until there is nothing left, or it is stopped."""
        while not (self.own.finished or self.stopped.wait(0.02)):
            self.own.write()


class Serving:
    """A verifier that serves on a port."""

    def __init__(self, verifier: InProcessVerifier, client: Client) -> None:
        self.verifier = verifier
        self.client = client

    @property
    def running(self) -> int:
        """Requests that run or wait."""
        return len(self.verifier.verifier._requests)

    async def until(self, condition: Callable[[], object]) -> None:
        await self.verifier.until(condition)

    @asynccontextmanager
    async def writing(
        self, prompts: list[Prompt] = PROMPTS, quiet_seconds: float = 0.05, *, probabilities: bool = False
    ) -> AsyncIterator[Writing]:
        writing = Writing(self.client, prompts, quiet_seconds, probabilities=probabilities)
        running = asyncio.create_task(asyncio.to_thread(writing.run))
        try:
            yield writing
        finally:
            writing.stopped.set()
            self.verifier.engine.go_on()
            await running


@pytest.fixture
async def serving(services: Services, target: Path) -> AsyncIterator[Serving]:
    async with services.in_process_verifier(target, share_traffic=True) as verifier:
        server = ServiceServer(ServiceSettings())
        server.add(add_VerifierServiceServicer_to_server, VerifierServicer(verifier.verifier))
        await server.start()
        try:
            with Client(server.address) as client:
                yield Serving(verifier, client)
        finally:
            await server.stop(0.0)


async def test_an_idle_verifier_continues_each_prompt_twice(serving: Serving) -> None:
    interrupted: list[Any] = []
    async with serving.writing() as writing:
        seen = writing.own._others.seen
        await serving.until(lambda: serving.running)

        def noted() -> None:
            interrupted.append(1)
            seen()

        writing.own._others.seen = noted  # type: ignore[method-assign]
        await serving.until(lambda: writing.own.finished)
    assert not interrupted, "its own requests are not taken for those of others"
    assert not writing.told
    prompts = [tuple(prompt) for prompt, _ in writing.texts]
    assert len(prompts) == 2 * len(set(prompts)) == 2 * len(PROMPTS)
    assert {tuple(prompt) for prompt in PROMPTS if not isinstance(prompt, str)} < set(prompts)
    for prompt in set(prompts):
        plain = await serving.verifier.plain(order(list(prompt), 24, ignore_eos=False))
        outputs = [output for each, output in writing.texts if tuple(each) == prompt]
        assert plain.token_ids in outputs, "one of them is greedy"


async def test_it_comes_with_the_likeliest_tokens_if_they_are_asked_for(serving: Serving) -> None:
    texts: list[dict[Any, TopTokens]] = []
    for probabilities in (False, True):
        async with serving.writing([[5, 6, 7], [8, 9]], probabilities=probabilities) as writing:
            await serving.until(lambda: writing.own.finished)
        assert [len(top) for top in writing.tops] == [len(output) for _, output in writing.texts]
        assert {top.top for top in writing.tops} == {8 if probabilities else 0}
        texts.append({tuple(map(tuple, text)): top for text, top in zip(writing.texts, writing.tops, strict=True)})
    greedy = {
        tuple(prompt): (await serving.verifier.plain(order(prompt, 24, ignore_eos=False))).token_ids
        for prompt in ([5, 6, 7], [8, 9])
    }
    for prompt, output in greedy.items():
        assert (prompt, tuple(output)) in texts[0]
        top = texts[1][prompt, tuple(output)]
        assert top.token_ids[:, 0].tolist() == output


async def test_its_requests_are_private_and_take_half_of_the_places(serving: Serving) -> None:
    stream: Any = VerifierServicer(serving.verifier.verifier).FollowTraffic(FollowTrafficRequest(), ONE)
    await anext(stream)
    serving.verifier.engine.hold(0)
    async with serving.writing([[4, number] for number in range(3, 23)]) as writing:
        await serving.until(lambda: serving.running == 8)
        orders = [request.order for request in serving.verifier.verifier._requests.values()]
        assert all(each.private and not each.speculate and not each.spec.leaves_prefix for each in orders)
        assert sorted(each.sampling.temperature for each in orders) == [0.0] * 4 + [0.7] * 4
        serving.verifier.engine.go_on()
        await serving.until(lambda: writing.own.finished)
    await serving.verifier.generate(order([5, 6, 7], max_tokens=3))
    assert [list(each.prompt_token_ids) for each in (await anext(stream)).requests] == [[5, 6, 7]]
    await stream.aclose()


@pytest.mark.parametrize(("slots", "together"), [(300, 5), (20, 1)])
async def test_it_takes_half_of_the_kv_slots(serving: Serving, slots: int, together: int) -> None:
    own = Writing(serving.client, PROMPTS, 0.0).own
    info = await asyncio.to_thread(own._others.look)
    serving.verifier.engine.hold(0)
    small = replace(info, engine=replace(info.engine, total_slots=slots))
    writing = asyncio.create_task(asyncio.to_thread(own._write, small))
    await serving.until(lambda: serving.running == together)
    serving.verifier.engine.go_on()
    await writing
    assert len(own._left) == 10 - together


@pytest.mark.parametrize(("steps", "kept"), [(3, 0), (20, 8)])
async def test_another_request_ends_it_at_once(
    serving: Serving, begun: list[own_text._Text], steps: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_text, "_TEMPERATURES", (0.0, 0.0))  # a sampled text may end early by itself
    engine = serving.verifier.engine
    engine.hold(0)
    async with serving.writing(quiet_seconds=0.2) as writing:
        await serving.until(lambda: serving.running == 8)
        engine.hold(steps)
        await serving.until(lambda: engine.held and engine._permits == 0)
        await serving.until(lambda: min(len(text.tokens) for text in begun) >= steps - 1)
        other = asyncio.create_task(serving.verifier.generate(order([5, 6, 7], max_tokens=12)))
        await serving.until(lambda: serving.running == 1)  # without a further step
        await serving.until(lambda: len(writing.own._left) == 10 - kept)
        engine.go_on()
        assert len((await other).token_ids) == 12
        await serving.until(lambda: writing.own.finished)
    assert len(writing.texts) == 10, "what had just begun is written again"
    assert [len(output) in (steps - 1, steps) for _, output in writing.texts[:kept]] == [True] * kept


async def test_it_waits_until_others_have_ended(serving: Serving) -> None:
    serving.verifier.engine.hold(2)
    async with serving.verifier.running(order()):
        async with serving.writing() as writing:
            await asyncio.sleep(0.3)
            assert serving.running == 1 and not writing.texts
            serving.verifier.engine.go_on()
            await serving.until(lambda: len(writing.texts) == 10)


async def test_an_interruption_ends_it(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> bool:
        raise KeyboardInterrupt

    serving.verifier.engine.hold(4)
    writing = Writing(serving.client, PROMPTS, 0.0)
    monkeypatch.setattr(own_text._Others, "came", interrupt)
    # The loop of the test must not get the exception itself.
    with pytest.raises(RuntimeError, match="interrupted"):
        await asyncio.to_thread(_interrupted, writing)
    await serving.until(lambda: serving.running == 0)
    assert not writing.texts and not writing.own.finished


def _interrupted(writing: Writing) -> None:
    try:
        writing.run()
    except KeyboardInterrupt:
        raise RuntimeError("interrupted") from None


async def test_a_prompt_that_is_refused_is_skipped(serving: Serving) -> None:
    async with serving.writing([[4, 5], [10**6]]) as writing:
        await serving.until(lambda: writing.own.finished)
    assert len(writing.texts) == 2
    assert len(writing.told) == 2 and all("a prompt is skipped" in each for each in writing.told)


def test_a_verifier_that_is_away_is_an_error() -> None:
    with Client("127.0.0.1:1", timeout=0.2) as client, pytest.raises(DraftwireError):
        Writing(client, PROMPTS, 0.0).own.write()


async def test_after_an_error_others_may_have_come(serving: Serving) -> None:
    """Nothing is written again before the verifier has been seen to be idle for long enough."""
    own = Writing(serving.client, PROMPTS, 3600.0).own
    await asyncio.to_thread(own.write)
    own._others._seen -= 7200.0
    assert own._others.quiet_seconds > 3600.0
    own._others.look = broken  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        own.write()
    assert own._others.quiet_seconds < 3600.0


def broken() -> Any:
    raise UnavailableError("gone")
