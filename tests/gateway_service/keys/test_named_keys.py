"""Named keys at a gateway in this process: what each may use, what it is told, and what is recorded."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from structlog.testing import capture_logs

from draftwire._auth.security import ON_BEHALF_OF
from tests.gateway_service.conftest import OpenGateway
from tests.gateway_service.keys.key_tables import bearer, secret, spoil, write
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

PROMPT = [97, 98, 99, 100]
BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 6, "seed": 1}
TOKENS = len(PROMPT) + 6
"""Tokens of a request."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


async def post(http: httpx.AsyncClient, name: str, **body: Any) -> httpx.Response:
    return await http.post("/v1/completions", json=BODY | body, headers=bearer(name))


async def samples(http: httpx.AsyncClient, metric: str) -> dict[str, float]:
    """Returns the values of a metric by its labels."""
    lines = (await http.get("/metrics", headers=bearer("boss"))).text.splitlines()
    start = f"draftwire:gateway_key_{metric}{{"
    found = (line.removeprefix(start).split("} ") for line in lines if line.startswith(start))
    return {labels: float(value) for labels, value in found}


async def test_twenty_keys_with_different_quotas(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    by_requests = {f"r{quota}": f"requests_per_minute = {quota}" for quota in range(1, 11)}
    by_tokens = {f"t{quota}": f"tokens_per_minute = {quota * TOKENS + 5}" for quota in range(1, 11)}
    http = await open_gateway(keys=str(write(file, boss="operator = true", **by_requests, **by_tokens)))
    calls = [name for name in (*by_requests, *by_tokens) for _ in range(int(name[1:]) + 3)]
    answers = await asyncio.gather(*(post(http, name) for name in calls))
    served: Counter[str] = Counter()
    for name, answer in zip(calls, answers, strict=True):
        unit, quota = "requests" if name[0] == "r" else "tokens", int(name[1:])
        limit = quota if unit == "requests" else quota * TOKENS + 5
        assert answer.headers[f"x-ratelimit-limit-{unit}"] == str(limit)
        assert float(answer.headers[f"x-ratelimit-reset-{unit}"].removesuffix("s")) <= 60
        if answer.status_code == 200:
            served[name] += 1
            continue
        assert answer.status_code == 429
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert f"({unit}_per_minute)" in error["message"] and name in error["message"]
        assert 0 < int(answer.headers["retry-after"]) <= 60
    assert served == {name: int(name[1:]) for name in (*by_requests, *by_tokens)}
    assert Counter(metadata[ON_BEHALF_OF] for metadata in fake.metadata) == served
    tokens = await samples(http, "tokens_total")
    refusals = await samples(http, "refusals_total")
    for name, quota in served.items():
        assert tokens[f'key="{name}",kind="prompt"'] == quota * len(PROMPT)
        assert tokens[f'key="{name}",kind="completion"'] == quota * 6
        refused_by = "requests_per_minute" if name[0] == "r" else "tokens_per_minute"
        assert refusals[f'key="{name}",limit="{refused_by}"'] == 3
    assert set((await samples(http, "running")).values()) == {0}


async def test_a_reload_under_load_loses_nothing(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    limits = {"alice": "requests_per_minute = 1000", "boss": "operator = true"}
    http = await open_gateway(keys=str(write(file, **limits)))
    fake.delay = 0.002
    written = 0

    async def work(name: str, stream: bool) -> list[int]:
        return [(await post(http, name, stream=stream)).status_code for _ in range(8)]

    async def rewrite() -> None:
        nonlocal written
        while True:
            spoil(file)  # the last valid content stays in use
            await asyncio.sleep(0)
            write(file, **limits, **{f"new{written}": f"max_running = {written + 1}"})
            written += 1
            await asyncio.sleep(0.005)

    rewriting = asyncio.create_task(rewrite())
    statuses = await asyncio.gather(*(work(name, stream) for name in limits for stream in (False, True) * 3))
    rewriting.cancel()
    assert written > 2
    assert [status for each in statuses for status in each] == [200] * 96
    last = await post(http, "alice")
    assert last.headers["x-ratelimit-remaining-requests"] == str(1000 - 48 - 1)  # the account outlived the reloads
    write(file, alice="requests_per_minute = 49")
    assert (await post(http, "alice")).status_code == 429
    assert (await post(http, "boss")).status_code == 401


async def test_most_running(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    http = await open_gateway(keys=str(write(file, alice="max_running = 2", bob="")))
    fake.hang_after = 1
    running = [asyncio.create_task(post(http, "alice")) for _ in range(2)]
    await asyncio.to_thread(eventually, lambda: fake.running == 2, "both run")
    refused = await post(http, "alice")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "(max_running)" in refused.json()["error"]["message"]
    fake.hang_after = None
    assert (await post(http, "bob")).status_code == 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert (await post(http, "alice", n=2)).status_code == 200
    assert (await post(http, "alice", n=3)).json()["error"]["code"] == "request_too_large"


async def test_models_of_a_key(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    path = write(file, alice='models = ["second"]', bob='models = ["other"]', carol="")
    http = await open_gateway(keys=str(path), served_model_name="first,second")
    for name, models in (("alice", ["second"]), ("bob", []), ("carol", ["first", "second"])):
        listed = (await http.get("/v1/models", headers=bearer(name))).json()["data"]
        assert [card["id"] for card in listed] == models
    assert (await post(http, "alice", model="second")).json()["model"] == "second"
    assert (await post(http, "alice", model=None)).json()["model"] == "second"
    assert (await post(http, "carol", model=None)).json()["model"] == "first"
    for name, model in (("alice", "first"), ("bob", "first"), ("bob", None)):
        refused = await post(http, name, model=model)
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_allowed")
    for path_, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})):
        answer = await http.post(path_, json=body | {"model": "first"}, headers=bearer("alice"))
        assert answer.status_code == 403
    assert (await http.get("/v1/models/first", headers=bearer("alice"))).status_code == 403


async def test_who_is_refused(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    path = write(file, alice="expires = 2020-01-01T00:00:00Z", bob="expires = 2999-01-01T00:00:00Z")
    http = await open_gateway(keys=str(path), api_key="plain")
    for name, code in (("alice", "expired_api_key"), ("nobody", "invalid_api_key")):
        client = openai.AsyncOpenAI(
            api_key=secret(name), base_url="http://localhost/v1", http_client=http, max_retries=0
        )
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
        assert caught.value.code == code
    assert not fake.requests
    assert (await post(http, "bob")).status_code == 200
    for path_ in ("/metrics", "/console/api/state"):
        assert (await http.get(path_, headers=bearer("bob"))).json()["error"]["code"] == "operator_required"
    plain = {"authorization": "Bearer plain"}  # without name and limits
    assert (await http.get("/metrics", headers=plain)).status_code == 200
    answer = await http.post("/v1/completions", json=BODY, headers=plain)
    assert answer.status_code == 200 and not any(name.startswith("x-ratelimit") for name in answer.headers)
    assert ON_BEHALF_OF not in fake.metadata[-1]


async def test_the_audit_line(open_gateway: OpenGateway, fake: TellingVerifier, file: Path) -> None:
    http = await open_gateway(keys=str(write(file, alice="")))
    with capture_logs() as logs:
        assert (await post(http, "alice", n=2)).status_code == 200
    [charged] = [line for line in logs if line["event"] == "key charged"]
    told = {"key": "alice", "model": "fake", "choices": 2, "prompt_tokens": 4, "completion_tokens": 12}
    assert charged == told | {"complete": True, "event": "key charged", "log_level": "info"}
    finished = [line for line in logs if line["event"] == "request finished"]
    assert [line["key"] for line in finished] == ["alice"]
    assert secret("alice") not in repr(logs)
