"""API keys: who may call."""

import re
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry

from gateway_service.http.errors import GatewayError
from gateway_service.keys.api_keys import ApiKeys, read_key_file
from gateway_service.observability.key_metrics import KeyMetrics
from tests.gateway_service.conftest import OpenGateway
from tests.harness.services.services import Services
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_accepted_or_not() -> None:
    keys, metrics = ApiKeys(["one", "two"]), KeyMetrics(CollectorRegistry())
    assert keys and keys.grant("one", metrics) is None and keys.grant("two", metrics) is None
    for wrong in ("", "on", "three", "\ud800"):
        with pytest.raises(GatewayError) as refused:
            keys.grant(wrong, metrics)
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert not ApiKeys([])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/metrics", "/v1/nothing"])
async def test_a_key_is_asked_for(open_gateway: OpenGateway, path: str) -> None:
    http = await open_gateway(api_key="one,two")
    for headers in ({}, bearer("three"), bearer(""), {"authorization": "Basic one"}, {"authorization": "one"}):
        refused = await http.get(path, headers=headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["type"] == "authentication_error"
    for key in ("one", "two"):
        assert (await http.get(path, headers=bearer(key), timeout=PATIENCE)).status_code != 401


async def test_nothing_is_generated_without_a_key(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    http = await open_gateway(api_key="one")
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert (await http.post(path, json={"prompt": "x"})).status_code == 401
    assert not fake.calls


async def test_health_needs_none(open_gateway: OpenGateway) -> None:
    http: httpx.AsyncClient = await open_gateway(api_key="one")
    assert (await http.get("/health")).status_code == 200


async def test_openais_client_names_the_error(open_gateway: OpenGateway) -> None:
    http = await open_gateway(api_key="one")
    client = openai.AsyncOpenAI(api_key="two", base_url="http://localhost/v1", http_client=http)
    with pytest.raises(openai.AuthenticationError) as caught:
        await client.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_the_description_tells_of_keys(open_gateway: OpenGateway) -> None:
    described = (await (await open_gateway(api_key="one")).get("/openapi.json")).json()
    assert described["paths"]["/v1/completions"]["post"]["security"]
    assert "security" not in described["paths"]["/health"]["get"]


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeff# ours\none\n\n  two \n  # no longer: three\n", encoding="utf-8")
    assert read_key_file(str(path)) == ["one", "two"]
    path.write_text("one\r\ntwo\r\n", "utf-8-sig")
    assert read_key_file(str(path)) == ["one", "two"]
    path.write_text("# none\n")
    for wrong in (path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=re.escape(str(wrong))):
            read_key_file(str(wrong))


def test_keys_come_from_flags_variables_and_files_and_are_never_logged(
    fake: TellingVerifier, services: Services, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("from-the-file\n")
    flags = ("--verifier", fake.address, "--log-level", "debug", "--api-key-file", str(file))
    gateway = services.gateway(*flags, variables={"DRAFTWIRE_API_KEYS": "from-a-variable,and-another"})
    flagged = services.gateway(*flags, "--api-key", "from-a-flag")
    for started, good in (
        (gateway, ("from-the-file", "from-a-variable", "and-another")),
        (flagged, ("from-the-file", "from-a-flag")),
    ):
        for key in good:
            assert httpx.get(f"{started.url}/v1/models", headers=bearer(key), timeout=PATIENCE).status_code == 200
        assert httpx.get(f"{started.url}/v1/models", headers=bearer("wrong-key"), timeout=PATIENCE).status_code == 401
        for key in (*good, "wrong-key"):
            assert key not in started.log.read_text()
