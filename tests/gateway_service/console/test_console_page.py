"""The console as the gateway serves it."""

from tests.gateway_service.conftest import OpenGateway


async def test_the_page_is_served(open_gateway: OpenGateway) -> None:
    http = await open_gateway()
    page = await http.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]


async def test_its_calls_need_a_key_and_it_does_not(open_gateway: OpenGateway) -> None:
    http = await open_gateway(api_key="one")
    assert (await http.get("/")).status_code == 200
    for path in ("generate", "drafters/attach", "drafters/detach", "drafters/swap", "rollouts/start"):
        assert (await http.post(f"/console/api/{path}", json={})).status_code == 401
    assert (await http.get("/console/api/state")).status_code == 401
    attached = await http.post("/console/api/drafters/attach", json={}, headers={"authorization": "Bearer one"})
    assert attached.status_code == 400 and attached.json()["error"]["field"] == "address"


async def test_it_can_be_left_out(open_gateway: OpenGateway) -> None:
    http = await open_gateway(console=False)
    assert (await http.get("/")).status_code == 404
    assert (await http.post("/console/api/generate", json={})).status_code == 404
