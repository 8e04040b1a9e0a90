"""A name's target swapped blue-green under load: processes of two real targets, and of one in two numerics.

No step waits for a time, and a stream runs until the test reads it, so no outcome depends on the machine's speed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest

from draftwire import Client
from draftwire_core.engine.kernels.library import LIBRARY
from gateway_service.models.served_model import system_fingerprint
from tests.gateway_service.client_answers import answer_to, held
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, eventually

pytestmark = pytest.mark.slow

PROMPT = "def read_config(path):\n"
MESSAGES = [{"role": "user", "content": "write a function"}]
TOKENS, LONG = 64, 1200
"""Tokens of a request, and of a stream that is held."""
DIFFERENT = 6
"""Seeds with which the two targets write different texts."""
WORKERS = 4


@dataclass(frozen=True)
class Target:
    """A verifier, and what it writes when nobody else is served."""

    verifier: ServiceProcess
    fingerprint: str
    texts: Mapping[int, str]
    """By seed."""


def described(verifier: ServiceProcess) -> Target:
    with Client(verifier.address, timeout=LONG_PATIENCE) as client:
        info = client.model_info()
        seeds = range(5 * DIFFERENT)
        alone = client.generate_batch([PROMPT] * len(seeds), max_tokens=TOKENS, ignore_eos=True, seed=list(seeds))
    texts = {seed: each.text for seed, each in zip(seeds, alone, strict=True)}
    return Target(verifier, system_fingerprint(info.fingerprint, info.numerics), texts)


@dataclass
class Load:
    """Requests without a pause, whole and streamed."""

    http: httpx.AsyncClient
    seeds: list[int]
    targets: dict[str, Target]
    """By fingerprint."""
    step: int = 0
    """Number of changes so far."""
    answers: list[tuple[int, str]] = field(default_factory=list)
    """The step in which each request began, and the fingerprint that answered it."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    async def work(self, stream: bool) -> None:
        for number in count():
            if self.over:
                return
            began, seed = self.step, self.seeds[number % len(self.seeds)]
            body = {"model": "chat", "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "seed": seed}
            answer = await answer_to(self.http, "/v1/completions", body | {"stream": stream})
            assert answer.status == 200, answer.bodies
            assert answer.text == self.targets[answer.fingerprint].texts[seed]
            self.answers.append((began, answer.fingerprint))
            self.answered.set()

    async def more(self, number: int) -> None:
        """Waits for answers to requests that began in this step."""
        while self.of(self.step).total() < number:
            self.answered.clear()
            await self.answered.wait()

    def of(self, step: int) -> Counter[str]:
        """Returns the number of requests that began in a step, by the fingerprints that answered them."""
        return Counter(fingerprint for began, fingerprint in self.answers if began == step)


@pytest.fixture(
    params=[
        pytest.param(("draft",), id="another model"),
        pytest.param(
            ("target", "--kernels", "torch"),
            id="other numerics",
            marks=pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library"),
        ),
    ]
)
def targets(request: pytest.FixtureRequest, services: Services) -> tuple[Target, Target]:
    flags = ("--dtype", "bfloat16", "--shutdown-grace-seconds", "3600")
    blue, green = services.verifier("target", *flags), services.verifier(*request.param, *flags)
    return described(blue), described(green)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def shared(path: Path, *shares: tuple[Target, int]) -> None:
    """Writes the file of models with these targets of one name, in place of the old one."""
    new = path.with_suffix(".new")
    tables = (f'[[chat.targets]]\nverifiers = ["{each.verifier.address}"]\nshare = {share}\n' for each, share in shares)
    new.write_text("".join(tables))
    new.replace(path)


@pytest.fixture
async def load(services: Services, targets: tuple[Target, Target], file: Path) -> AsyncIterator[Load]:
    blue, green = targets
    shared(file, (blue, 100), (green, 0))
    gateway = services.gateway("--models", str(file), "--request-seconds", "3600")
    seeds = [seed for seed, text in blue.texts.items() if text != green.texts[seed]][:DIFFERENT]
    assert len(seeds) == DIFFERENT and blue.fingerprint != green.fingerprint
    async with httpx.AsyncClient(base_url=gateway.url, timeout=LONG_PATIENCE) as http:
        yield Load(http, seeds, {each.fingerprint: each for each in targets})


async def samples(http: httpx.AsyncClient, metric: str) -> dict[str, float]:
    """Returns the values of a metric by the addresses of verifiers."""
    lines = (await http.get("/metrics")).text.splitlines()
    start = f'draftwire:gateway_verifier_{metric}{{verifier="'
    found = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
    return {address: float(value) for address, value in found}


def until_it_ends(verifier: ServiceProcess) -> None:
    """Waits until a verifier's shutdown begins."""
    event = "shutting down"
    eventually(lambda: any(each["event"] == event for each in verifier.events()), event, patience=LONG_PATIENCE)


async def test_nothing_is_lost_and_each_text_is_of_one_target(
    load: Load, targets: tuple[Target, Target], file: Path
) -> None:
    blue, green = targets
    with Client(blue.verifier.address, timeout=LONG_PATIENCE) as client:
        expected = await asyncio.to_thread(client.chat, MESSAGES, max_tokens=LONG, ignore_eos=True, seed=1)
    async with asyncio.TaskGroup() as group, held(load.http, {"messages": MESSAGES, "seed": 1}, LONG) as stream:
        for number in range(WORKERS):
            group.create_task(load.work(stream=number % 2 > 0))

        await load.more(12)
        assert set(load.of(0)) == {blue.fingerprint}
        shared(file, (blue, 50), (green, 50))
        load.step = 1
        await load.more(24)
        shared(file, (blue, 0), (green, 100))
        load.step = 2
        await load.more(12)

        in_flight = await samples(load.http, "in_flight")
        while in_flight[blue.verifier.address] > 1:  # workers' last requests
            in_flight = await samples(load.http, "in_flight")
        assert in_flight[blue.verifier.address] == 1
        blue.verifier.process.terminate()
        await asyncio.to_thread(until_it_ends, blue.verifier)
        load.step = 3
        await load.more(12)
        answer = await stream.read()
        assert (answer.fingerprint, answer.text) == (blue.fingerprint, expected.text)
        assert await asyncio.to_thread(blue.verifier.process.wait, LONG_PATIENCE) == 0
        load.step = 4
        await load.more(12)
        sent = await samples(load.http, "requests_total")
        shared(file, (green, 100))
        load.step = 5
        await load.more(12)
        load.over = True

    halves = load.of(1)  # some of the step before were divided, too, and some of this step all went to green
    assert abs(halves[blue.fingerprint] - halves[green.fingerprint]) <= 2 * WORKERS + 1
    for step in range(2, 6):
        assert set(load.of(step)) == {green.fingerprint}
    answers = Counter(fingerprint for _, fingerprint in load.answers)
    assert sent[blue.verifier.address] == answers[blue.fingerprint] + 1  # the stream; none was sent twice
