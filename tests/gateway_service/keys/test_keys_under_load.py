"""Twenty keys with different limits at a gateway's process, in front of verifiers of two real models, under load.

The file of keys is written again and again meanwhile. The gateway's keys follow a clock that the test sets, and streams
run until the test reads them, so no outcome depends on the machine's speed.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftwire import Client
from tests.gateway_service.client_answers import Answer, Held, answer_to, held
from tests.gateway_service.keys.key_tables import bearer, secret, spoil, write
from tests.harness.clocked_gateway import CLOCK
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.slow

BEGIN = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
OUTPUT = 6
TOKENS = 4 + OUTPUT
"""Tokens of a request, the prompt's included."""
OVER = 3
"""Requests of each limited key beyond its quota."""
REWRITES = 10
LONG = 1200
"""Tokens of a stream that is held."""
MESSAGES = [{"role": "user", "content": "write a function"}]

BY_REQUESTS = {f"requests{quota}": quota for quota in range(1, 6)}
BY_TOKENS = {f"tokens{quota}": quota for quota in range(1, 6)} | {"both": 4}
QUOTAS = BY_REQUESTS | BY_TOKENS | {"raised": 2}
"""Requests that fit into a minute of each limited key."""
RUNNING = {"one": 1, "two": 2}
STEADY = ("ample", "free")
"""Keys whose load stays within their limits, and goes on all the time."""
LIMITS = (
    {name: f"requests_per_minute = {quota}" for name, quota in BY_REQUESTS.items()}
    | {name: f"tokens_per_minute = {quota * TOKENS + 5}" for name, quota in BY_TOKENS.items()}
    | {
        "both": f"requests_per_minute = 9\ntokens_per_minute = {4 * TOKENS}",
        "raised": "requests_per_minute = 2",
        "removed": "",
        "one": "max_running = 1",
        "two": "max_running = 2",
        "small": 'models = ["small"]',
        "past": "expires = 2026-12-31T00:00:00Z",
        "soon": "expires = 2027-01-01T00:00:30Z",
        "ample": 'models = ["large", "small"]\nrequests_per_minute = 1000000\ntokens_per_minute = 100000000',
        "free": "",
    }
)
PROMPTS = {name: [100 + number, 101, 102, 103] for number, name in enumerate(LIMITS)}
TOKEN = {"gateway": "gateway-0123456789", "tester": "tester-0123456789"}


class Load:
    """The requests of all keys, and what came of them."""

    def __init__(self, http: httpx.AsyncClient, texts: Mapping[tuple[str, str], str]) -> None:
        """texts: those that each key's requests must have, by model and key."""
        self.http = http
        self._texts = texts
        self.answers: dict[str, list[Answer]] = defaultdict(list)

    async def ask(self, name: str, model: str = "large", stream: bool = False) -> Answer:
        body = {"model": model, "prompt": PROMPTS[name], "max_tokens": OUTPUT, "ignore_eos": True, "seed": 1}
        answer = await answer_to(self.http, "/v1/completions", body | {"stream": stream}, **bearer(name))
        self.answers[name].append(answer)
        if answer.status == 200:
            assert answer.text == self._texts[model, name]
            assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (TOKENS - OUTPUT, OUTPUT)
        return answer

    def hold(self, name: str) -> Any:
        return held(self.http, {"model": "large", "messages": MESSAGES, "seed": 1}, LONG, **bearer(name))

    async def end(self, name: str, stream: Held) -> None:
        """Reads a held stream to its end."""
        answer = await stream.read()
        assert answer.text == self._texts["large", "held"]
        self.answers[name].append(answer)

    async def go_on(self, name: str, stream: bool, over: asyncio.Event) -> None:
        """Asks both models until it is over."""
        while not over.is_set():
            for model in ("large", "small"):
                answer = await self.ask(name, model, stream)
                assert answer.status == 200, answer.bodies

    async def exceed(self, quotas: Mapping[str, int]) -> None:
        """Asks at once for more than these quotas; exactly the quotas are served."""
        calls = [(name, number % 2 > 0) for name, quota in quotas.items() for number in range(quota + OVER)]
        answers = await asyncio.gather(*(self.ask(name, stream=stream) for name, stream in calls))
        served: Counter[str] = Counter()
        for (name, _), answer in zip(calls, answers, strict=True):
            served[name] += answer.status == 200
            unit = "tokens" if name in BY_TOKENS else "requests"
            assert float(answer.headers[f"x-ratelimit-reset-{unit}"].removesuffix("s")) <= 60
            if answer.status != 200:
                check_refused(answer, name, f"{unit}_per_minute")
                assert f"{unit} a minute ({unit}_per_minute): limit " in error_of(answer)["message"]
        assert served == quotas


def error_of(answer: Answer) -> dict[str, Any]:
    [body] = answer.bodies
    error: dict[str, Any] = body["error"]
    return error


def check_refused(answer: Answer, name: str, limit: str) -> None:
    """Checks the answer to a request beyond a limit."""
    assert answer.status == 429
    error = error_of(answer)
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert f"rate limit reached for the key {name}" in error["message"] and f"({limit})" in error["message"]
    assert 0 < int(answer.headers["retry-after"]) <= 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "keys.toml", boss="operator = true", **LIMITS)


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    path = tmp_path / "clock"
    set_clock(path, 0)
    return path


def set_clock(path: Path, seconds: float) -> None:
    """Sets the gateway's clock. seconds: since the beginning."""
    new = path.with_suffix(".new")
    new.write_text(str(BEGIN + seconds))
    new.replace(path)


@pytest.fixture
def verifiers(services: Services, tmp_path: Path) -> dict[str, ServiceProcess]:
    accepted = tmp_path / "accepted.toml"
    roles = {"gateway": "gateway", "tester": "admin"}
    accepted.write_text(
        "".join(f'[{name}]\ntoken = "{TOKEN[name]}"\nroles = ["{role}"]\n' for name, role in roles.items())
    )
    flags = ("--accepted-tokens", str(accepted), "--max-wait-seconds", "0")
    return {name: services.verifier(model, *flags) for name, model in (("large", "target"), ("small", "draft"))}


@pytest.fixture
def gateway(
    services: Services, verifiers: dict[str, ServiceProcess], file: Path, clock: Path, tmp_path: Path
) -> ServiceProcess:
    models, token = tmp_path / "models.toml", tmp_path / "token"
    models.write_text("".join(f'[{name}]\nverifiers = ["{each.address}"]\n' for name, each in verifiers.items()))
    token.write_text(TOKEN["gateway"])
    flags = ("--models", str(models), "--token-file", str(token), "--keys", str(file), "--request-seconds", "3600")
    return services.start("tests.harness.clocked_gateway", *flags, variables={CLOCK: str(clock)})


@pytest.fixture
def texts(verifiers: dict[str, ServiceProcess]) -> dict[tuple[str, str], str]:
    """The text of each key's requests to each model, as the SDK gets it from the verifier; and that of held streams."""
    found: dict[tuple[str, str], str] = {}
    for model, verifier in verifiers.items():
        with Client(verifier.address, token=TOKEN["tester"], timeout=LONG_PATIENCE) as client:
            alone = client.generate_batch(list(PROMPTS.values()), max_tokens=OUTPUT, ignore_eos=True, seed=1)
            found |= {(model, name): each.text for name, each in zip(PROMPTS, alone, strict=True)}
            if model == "large":
                found[model, "held"] = client.chat(MESSAGES, max_tokens=LONG, ignore_eos=True, seed=1).text
    return found


@pytest.fixture
async def load(gateway: ServiceProcess, texts: dict[tuple[str, str], str]) -> AsyncIterator[Load]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=LONG_PATIENCE, limits=limits) as http:
        yield Load(http, texts)


async def rewrite(load: Load, file: Path) -> None:
    """Writes the file again and again: half of it, and then all of it and another key. Requests come in between."""
    for number in range(REWRITES):
        spoil(file)
        assert (await load.ask("free")).status == 200
        write(file, boss="operator = true", **LIMITS, another=f"max_running = {number + 1}")
        assert (await load.ask("free")).status == 200


async def test_limits_are_kept_to_the_request_and_others_are_unharmed(
    load: Load, gateway: ServiceProcess, verifiers: dict[str, ServiceProcess], file: Path, clock: Path
) -> None:
    assert len(LIMITS) == 20
    over = asyncio.Event()
    async with AsyncExitStack() as open_streams:
        steady = [asyncio.create_task(load.go_on(name, stream, over)) for name in STEADY for stream in (False, True)]
        running = [
            (name, await open_streams.enter_async_context(load.hold(name)))
            for name in ("free", *(name for name, most in RUNNING.items() for _ in range(most)))
        ]
        for name in RUNNING:
            for _ in range(OVER):
                check_refused(await load.ask(name), name, "max_running")
        await asyncio.gather(load.exceed(QUOTAS), rewrite(load, file))

        assert (await load.ask("removed")).status == 200
        changed = LIMITS | {"raised": "requests_per_minute = 5"}
        del changed["removed"]
        write(file, boss="operator = true", **changed)
        await load.exceed({"raised": 3})  # with the two from before, as many as the new limit
        assert error_of(await load.ask("removed"))["code"] == "invalid_api_key"

        for name, stream in running:
            await load.end(name, stream)
        for name in RUNNING:
            assert (await load.ask(name)).status == 200
        for model, status in (("small", 200), ("large", 403)):
            assert (await load.ask("small", model)).status == status
        assert (await load.ask("soon")).status == 200

        set_clock(clock, 59.9)
        await load.exceed(dict.fromkeys(QUOTAS.keys() - {"both"}, 0))
        set_clock(clock, 60.2)  # a minute, and the tenth of a second for which the window may be late
        await load.exceed(QUOTAS | {"raised": 5})
        for name in ("soon", "past"):
            assert error_of(await load.ask(name))["code"] == "expired_api_key"
        over.set()
        await asyncio.gather(*steady)
    await check_records(load, gateway, verifiers, file)


async def check_records(load: Load, gateway: ServiceProcess, verifiers: dict[str, ServiceProcess], file: Path) -> None:
    """Checks that the metrics, the gateway's log and the verifiers' agree with what the clients have got."""
    answers = [(name, each) for name, answers in load.answers.items() for each in answers]
    served = [(name, each) for name, each in answers if each.status == 200]
    of_key = Counter(name for name, _ in served)
    tokens = {
        kind: summed((name, each.usage[f"{kind}_tokens"]) for name, each in served) for kind in ("prompt", "completion")
    }

    samples = await key_samples(load.http)
    refused = Counter((name, limit_of(each)) for name, each in answers if each.status != 200)
    assert samples["refusals"] == {each: number for each, number in refused.items() if each[1] != "unknown"}
    uncounted = ("unknown", "expires", "requests_per_minute")
    counted = Counter((name,) for name, each in answers if each.status == 200 or limit_of(each) not in uncounted)
    assert samples["requests"] == counted
    for kind, by_name in tokens.items():
        assert {name: number for (name, each), number in samples["tokens"].items() if each == kind} == by_name
    assert set(samples["running"].values()) == {0}

    assert gateway.stop() == 0
    events = gateway.events()
    fault = f"{file} not reloaded; its last valid content stays in use: {file} is not valid TOML: TOMLDecodeError"
    assert sum(event["event"] == fault for event in events) >= REWRITES
    assert sum(event["event"] == f"{file} reloaded" for event in events) == REWRITES + 1
    charged = [event for event in events if event["event"] == "key charged"]
    assert all(event["complete"] and event["choices"] == 1 for event in charged)
    assert Counter(event["key"] for event in charged) == of_key
    for kind, by_name in tokens.items():
        assert summed((event["key"], event[f"{kind}_tokens"]) for event in charged) == by_name
    finished = Counter((each["key"], each["status"]) for each in events if "path" in each and "key" in each)
    assert finished == Counter((name, each.status) for name, each in answers if each.status != 401)
    assert not any(secret(name) in gateway.log.read_text() for name in LIMITS)

    logs = [event for verifier in verifiers.values() for event in verifier.events()]
    callers = Counter(event["caller"] for event in logs if event["event"] == "request accepted")
    del callers["tester"]
    assert callers == {f"gateway/{name}": number for name, number in of_key.items()}


def limit_of(answer: Answer) -> str:
    """Returns the limit that refused a request, by its name in the metrics; "unknown" for a key that is not one."""
    error = error_of(answer)
    codes = {"expired_api_key": "expires", "model_not_allowed": "models", "invalid_api_key": "unknown"}
    named: str = error["message"].partition("(")[2].partition(")")[0]
    return codes.get(error["code"], named)


async def key_samples(http: httpx.AsyncClient) -> dict[str, dict[tuple[str, ...], float]]:
    """Returns the metrics of keys: by name of the metric, the values by their labels."""
    answer = await http.get("/metrics", headers=bearer("boss"))
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for line in answer.text.splitlines():
        if line.startswith("draftwire:gateway_key_") and "_created" not in line:
            name, _, labelled = line.removeprefix("draftwire:gateway_key_").partition("{")
            labels, _, value = labelled.partition("} ")
            values = tuple(each.partition("=")[2].strip('"') for each in labels.split(","))
            found[name.removesuffix("_total")][values] = float(value)
    return found


def summed(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for name, amount in amounts:
        total[name] += amount
    return dict(total)
