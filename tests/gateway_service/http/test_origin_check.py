"""Requests from pages of other origins are refused by the gateway itself."""

import httpx
import pytest

from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.fake_verifier import PROMPT
from tests.harness.stand_ins.telling_verifier import TellingVerifier

EVIL = "http://evil.example"
POSTS = (
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/console/api/generate",
    "/console/api/drafters/attach", "/console/api/drafters/detach", "/console/api/drafters/swap",
    "/console/api/rollouts/start", "/console/api/rollouts/finish",
)  # fmt: skip
FOREIGN = (
    {"origin": EVIL},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost.evil.example"},
    {"origin": "http://evil.example@localhost"},
    {"origin": "http://[::1"},
    {"origin": EVIL, "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
)
OWN = (
    {},
    {"origin": "http://localhost"},
    {"origin": "https://localhost"},
    {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
    {"origin": "http://proxied.example", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
)
BODY = {"prompt": PROMPT, "max_tokens": 1}


@pytest.mark.parametrize("headers", FOREIGN)
async def test_foreign_pages_are_refused(
    open_gateway: OpenGateway, fake: TellingVerifier, headers: dict[str, str]
) -> None:
    http = await open_gateway()
    for path in POSTS:
        refused = await http.post(path, json=BODY, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin"), path
        assert "--allowed-origin" in refused.text
    assert (await http.get("/console/api/state", headers=headers)).status_code == 403
    assert fake.calls == [] and fake.requests == [] and fake.pool_requests == []


@pytest.mark.parametrize("headers", OWN)
async def test_its_own_page_and_other_clients_are_not(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    asked = {"address": "far:50052"}
    assert (await http.post("/console/api/drafters/attach", json=asked, headers=headers)).status_code == 200


async def test_reading_is_left_to_the_browser(http: httpx.AsyncClient) -> None:
    """Links from elsewhere lead to the page, and monitors may be pages."""
    for path in ("/", "/health", "/v1/models"):
        answer = await http.get(path, headers={"origin": EVIL, "sec-fetch-site": "cross-site"})
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("allowed", [EVIL, "*"])
async def test_origins_that_are_allowed(open_gateway: OpenGateway, allowed: str) -> None:
    http = await open_gateway(allowed_origin=(allowed,))
    headers = {"origin": EVIL, "sec-fetch-site": "cross-site"}
    answer = await http.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == allowed
    other = await http.post("/v1/completions", json=BODY, headers={"origin": "http://other.example"})
    assert other.status_code == (200 if allowed == "*" else 403)


@pytest.mark.parametrize(("allowed", "status"), [((), 403), (("http://other.example",), 403), ((EVIL,), 200)])
async def test_a_preflight_says_why_it_is_refused(
    open_gateway: OpenGateway, allowed: tuple[str, ...], status: int
) -> None:
    http = await open_gateway(allowed_origin=allowed)
    asked = {"origin": EVIL, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for path in ("/v1/completions", "/console/api/drafters/attach"):
        answer = await http.options(path, headers=asked)
        assert answer.status_code == status
        if status != 200:
            assert "--allowed-origin" in answer.json()["error"]["message"]
            assert EVIL in answer.json()["error"]["message"]


async def test_a_long_origin_is_cut(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/completions", json=BODY, headers={"origin": "http://" + "x" * 5000})
    assert answer.status_code == 403 and len(answer.content) < 500
