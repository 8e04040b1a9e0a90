"""The page and its files, access to the API, and the form of its errors."""

from html.parser import HTMLParser

import grpc
import httpx
import pytest

from gateway_service.console.routes import STATIC
from tests.harness.stand_ins.fake_verifier import FakeVerifier, rich_status

GENERATE = "/console/api/generate"


class References(HTMLParser):
    """Collects the files that a page loads, and everything that a strict policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.files += [value for name in ("src", "href") if (value := given.get(name))]
        if (tag == "script" and "src" not in given) or tag == "style":
            self.inline.append(tag)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]


def test_the_page_loads_only_its_own_files(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    found = References()
    found.feed(page.text)
    assert found.inline == []
    assert len(found.files) >= 3
    for file in found.files:
        assert http.get("/" + file).status_code == 200, file


@pytest.mark.parametrize(
    "path", ["/", "/console/static/console.js", "/console/static/console.css", "/console/static/vendor/marked.js"]
)
def test_a_strict_policy_comes_with_every_file(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'" and policy["style-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"


def test_files_beside_the_static_ones_are_not_served(http: httpx.Client) -> None:
    assert (STATIC / ".." / "routes.py").exists()
    assert http.get("/console/static/%2e%2e/routes.py").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"prompt": "a", "messages": []}', None),
        (b'{"prompt": 5}', "prompt"),
        (b'{"prompt": "a", "tmperature": 1}', "tmperature"),
        (b'{"prompt": "a", "max_tokens": 1.5}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": -1}', "max_tokens"),
        (b'{"prompt": "a", "seed": -1}', "seed"),
        (b'{"prompt": "a", "speculation": "no"}', "speculation"),
        (b'{"messages": [{"role": "user"}]}', "messages.0.content"),
        (b'{"messages": [{"role": "root", "content": "x"}]}', "messages.0.role"),
        (b'{"prompt": "\\ud800"}', None),
    ],
)
def test_bad_input_is_refused_by_its_field(http: httpx.Client, body: bytes, field: str | None) -> None:
    answer = http.post(GENERATE, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["field"] == field
    assert field is None or field in error["message"]


def test_only_json_is_read(http: httpx.Client, verifier: FakeVerifier) -> None:
    """A form on another site could send text/plain without a preflight."""
    answer = http.post(GENERATE, content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert verifier.requests == []


def test_a_large_body_is_refused(http: httpx.Client) -> None:
    assert http.post(GENERATE, json={"prompt": "a" * (1 << 20)}).status_code == 413


@pytest.mark.parametrize(
    ("code", "reason", "status"),
    [
        (grpc.StatusCode.NOT_FOUND, "DRAFTER_NOT_FOUND", 404),
        (grpc.StatusCode.ALREADY_EXISTS, "DRAFTER_EXISTS", 409),
        (grpc.StatusCode.FAILED_PRECONDITION, "BUSY", 409),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "AT_CAPACITY", 429),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", 504),
        (grpc.StatusCode.INTERNAL, "INTERNAL", 500),
    ],
)
def test_errors_of_the_verifier_have_their_status(
    http: httpx.Client, verifier: FakeVerifier, code: grpc.StatusCode, reason: str, status: int
) -> None:
    verifier.failures = [rich_status(code, "told by the verifier", reason, retry_after=1.5)] * 2
    answer = http.post(GENERATE, json={"prompt": "a"})
    assert answer.status_code == status
    assert answer.json() == {"error": {"message": "told by the verifier", "field": None, "status": status}}
    assert answer.headers["retry-after"] == "2"


def test_the_field_is_named_as_in_the_api(http: httpx.Client, verifier: FakeVerifier) -> None:
    for told, named in {"sampling.temperature": "temperature", "text": "prompt", "max_tokens": "max_tokens"}.items():
        verifier.failures = [rich_status(grpc.StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", fields=(told,))]
        answer = http.post(GENERATE, json={"prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, named)


def test_a_verifier_that_is_gone(http: httpx.Client, verifier: FakeVerifier) -> None:
    verifier.stop()
    assert http.post(GENERATE, json={"prompt": "a"}).status_code == 503
    assert http.get("/console/api/state").status_code == 503
