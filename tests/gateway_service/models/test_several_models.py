"""A gateway with several models: names, aliases, and a name whose target is swapped under load."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from gateway_service.models.served_model import system_fingerprint
from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.fake_verifier import expected_ids, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

PROMPT = "def f"
NOBODY = "127.0.0.1:1"


class Target(TellingVerifier):
    """A verifier of one of several targets, which have different texts."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.fingerprint = f"target {number}"
        self.skew_drafted = number

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        response = super().GetModelInfo(request, context)
        response.model.fingerprint, response.model.numerics = self.fingerprint, self.numerics
        return response


def fingerprint(number: int) -> str:
    return system_fingerprint(f"target {number}", "one arithmetic")


def text(number: int, tokens: int = 6) -> str:
    return text_of(expected_ids(1 + number, tokens))


@pytest.fixture
def blue() -> Iterator[Target]:
    with Target(1) as made:
        yield made


@pytest.fixture
def green() -> Iterator[Target]:
    with Target(2) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def write(path: Path, text: str) -> str:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return str(path)


def shared(path: Path, *shares: tuple[Target, int]) -> str:
    targets = (f'[[chat.targets]]\nverifiers = ["{each.address}"]\nshare = {share}\n' for each, share in shares)
    return write(path, "".join(targets))


async def post(http: httpx.AsyncClient, model: str | None, **body: Any) -> httpx.Response:
    return await http.post(
        "/v1/completions", json={"model": model, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | body
    )


def told(answer: httpx.Response) -> tuple[str, str]:
    """Returns fingerprint and text of an answer, after checking that the fingerprint is one."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        body = answer.json()
        return body["system_fingerprint"], body["choices"][0]["text"]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    [one] = {chunk["system_fingerprint"] for chunk in chunks}
    return one, "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


async def test_requests_go_by_their_model(open_gateway: OpenGateway, blue: Target, green: Target, file: Path) -> None:
    models = {"one": blue.address, "two": green.address, "away": NOBODY}
    tables = [f'[{name}]\nverifiers = ["{address}"]\n' for name, address in models.items()]
    tables.insert(1, 'aliases = ["uno", "org/one"]\n')
    http = await open_gateway(models=write(file, "".join(tables)))
    listed = (await http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["one", "uno", "org/one", "two"]  # one that is away cannot be described
    assert (await http.get("/v1/models/")).json()["data"] == listed
    for model, number in (("one", 1), ("uno", 1), ("org/one", 1), (None, 1), ("", 1), ("two", 2)):
        answer = await post(http, model)
        assert told(answer) == (fingerprint(number), text(number))
        assert answer.json()["model"] == (model or "one")
    for verifier, model in ((blue, "one"), (green, "two")):
        before = verifier.calls.count("Tokenize")
        assert (await http.post("/tokenize", json={"model": model, "prompt": "a"})).status_code == 200
        assert verifier.calls.count("Tokenize") == before + 1
    assert (await http.get("/v1/models/org/one")).json()["id"] == "org/one"
    refused = await post(http, "three")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "'one', 'uno', 'org/one', 'two', 'away'" in refused.json()["error"]["message"]
    assert (await post(http, "away")).status_code == 503
    assert (await http.get("/health")).status_code == 200


async def test_an_adapter_is_named_as_the_model(open_gateway: OpenGateway, blue: Target, file: Path) -> None:
    blue.adapters = ["sql"]
    http = await open_gateway(models=write(file, f'[one]\nverifiers = ["{blue.address}"]\n'))
    listed = (await http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["one", "sql"]
    message = {"role": "user", "content": "a"}
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [message]}),
        ("responses", {"input": "a"}),
    ):
        for model, adapter in (("sql", "sql"), ("one", "")):
            answer = await http.post(f"/v1/{path}", json={"model": model, **body})
            assert (answer.status_code, answer.json()["model"]) == (200, model), answer.text
            assert blue.requests[-1].adapter == adapter


async def test_a_name_is_swapped_under_load_and_nothing_is_lost(
    open_gateway: OpenGateway, blue: Target, green: Target, file: Path
) -> None:
    http = await open_gateway(models=shared(file, (blue, 1)))
    blue.delay = green.delay = 0.002
    answers: list[tuple[str, str]] = []
    phase = 0

    async def work(stream: bool) -> None:
        while phase < 3:
            answers.append(told(await post(http, "chat", stream=stream)))

    working = [asyncio.create_task(work(stream)) for stream in (False, True) * 3]

    async def more(number: int) -> None:
        until = len(answers) + number
        await asyncio.to_thread(eventually, lambda: len(answers) >= until or any(each.done() for each in working), "")

    await more(12)
    assert set(answers) == {(fingerprint(1), text(1))}
    shared(file, (blue, 1), (green, 1))
    await more(24)
    shared(file, (green, 1))
    await more(12)
    phase = 3
    await asyncio.gather(*working)
    assert set(answers) == {(fingerprint(number), text(number)) for number in (1, 2)}
    assert Counter(each[0] for each in answers) == {
        fingerprint(1): len(blue.requests), fingerprint(2): len(green.requests)
    }  # fmt: skip
    blue.requests.clear()
    assert told(await post(http, "chat"))[0] == fingerprint(2)
    assert not blue.requests


async def test_a_running_request_ends_where_it_is(
    open_gateway: OpenGateway, blue: Target, green: Target, file: Path
) -> None:
    http = await open_gateway(models=shared(file, (blue, 1)))
    blue.gathers = 2  # the request waits for another one
    running = asyncio.create_task(post(http, "chat", stream=True))
    await asyncio.to_thread(eventually, lambda: blue.running == 1, "it runs")
    shared(file, (green, 1))
    assert told(await post(http, "chat"))[0] == fingerprint(2)
    assert not running.done()
    shared(file, (blue, 1), (green, 0))  # and back, to the client that is still there
    assert told(await post(http, "chat")) == (fingerprint(1), text(1))
    assert told(await running) == (fingerprint(1), text(1))


async def test_shares_are_kept_to_the_request(
    open_gateway: OpenGateway, blue: Target, green: Target, file: Path
) -> None:
    http = await open_gateway(models=shared(file, (blue, 9), (green, 1)))
    for _ in range(20):
        assert (await post(http, "chat")).status_code == 200
    assert (len(blue.requests), len(green.requests)) == (18, 2)


async def test_a_key_permits_models(
    open_gateway: OpenGateway, blue: Target, green: Target, file: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "alice-0123456789abcdef"\nmodels = ["two"]\n')
    models = f'[one]\nverifiers = ["{blue.address}"]\n[two]\naliases = ["due"]\nverifiers = ["{green.address}"]\n'
    http = await open_gateway(models=write(file, models), keys=str(keys))
    http.headers["authorization"] = "Bearer alice-0123456789abcdef"
    for model in ("two", "due", None):
        assert told(await post(http, model))[0] == fingerprint(2)
    assert (await post(http, "one")).status_code == 403
    assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == ["two", "due"]
