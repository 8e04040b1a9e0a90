"""The Host names that the gateway accepts: a foreign web page cannot reach it through a local browser."""

import httpx
import pytest

from gateway_service.http.host_check import allowed_hosts
from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.telling_verifier import TellingVerifier

ASKED = {"model": "any", "prompt": "x", "max_tokens": 1}


async def status(http: httpx.AsyncClient, host: str, path: str = "/v1/models") -> int:
    return (await http.get(path, headers={"host": host})).status_code


async def test_on_loopback_without_keys_only_names_of_loopback(
    open_gateway: OpenGateway, fake: TellingVerifier
) -> None:
    http = await open_gateway()
    for host in ("localhost", "localhost:8000", "LOCALHOST.:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert await status(http, host) == 200, host
    for host in (
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "10.0.0.1",
    ):
        assert await status(http, host) == 403, host
        assert (await http.post("/v1/completions", json=ASKED, headers={"host": host})).status_code == 403
        assert (await http.get("/", headers={"host": host})).status_code == 403
        assert await status(http, host, "/health") == 200
    assert fake.running == 0
    refused = await http.get("/v1/models", headers={"host": "evil.example"})
    assert refused.json()["error"]["code"] == "unknown_host" and "--allowed-host" in refused.text


async def test_names_that_are_given(open_gateway: OpenGateway) -> None:
    http = await open_gateway(allowed_host=("chat.example", "[fd00::1]"))
    assert [await status(http, host) for host in ("Chat.Example:443", "[fd00::1]:8000")] == [200, 200]
    assert await status(http, "localhost") == 403


async def test_metrics_are_read_by_address(open_gateway: OpenGateway) -> None:
    """Prometheus calls the pods of a service by their addresses, whatever names clients use."""
    http = await open_gateway(allowed_host=("chat.example",))
    for host in ("10.1.2.3:8000", "[fd00::7]:8000", "chat.example"):
        assert await status(http, host, "/metrics") == 200, host
    for host in ("evil.example", "10.1.2.3.evil.example", "[10.1.2.3]", "1.2.3.4.5"):
        assert await status(http, host, "/metrics") == 403, host
    assert await status(http, "10.1.2.3:8000") == 403
    keyed = await open_gateway(allowed_host=("chat.example",), api_key=("a-key-of-the-test",))
    assert await status(keyed, "10.1.2.3:8000", "/metrics") == 401


@pytest.mark.parametrize(
    ("listen", "keyed", "checked"),
    [
        ("127.0.0.1:8000", False, True),
        ("[::1]:8000", False, True),
        ("localhost:8000", False, True),
        ("127.0.0.1:8000", True, False),
        ("0.0.0.0:8000", False, False),
    ],
)
def test_where_names_are_checked(listen: str, keyed: bool, checked: bool) -> None:
    assert (allowed_hosts((), listen, keyed=keyed) is not None) == checked
