"""The command's options and its check of endpoints, without a model."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest

from draftwire_tools.check.black_box.endpoint import Endpoint
from draftwire_tools.check.prompts import check_prompts, speed_prompts
from draftwire_tools.check.request import check_requests
from tests.harness.certificates import Authority
from tests.harness.command import Command
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

SHORT = ("--requests", "2", "--max-tokens", "4", "--seeds", "0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft", "models/draft"), "--draft: requires --target"),
        (("--reference", "http://x"), "--reference: requires --openai"),
        (("--plain-field", "{}"), "--plain-field: requires --openai"),
        (("--openai", "localhost:8000"), "--openai localhost:8000: expected a URL"),
        (("--openai", "http://x", "--drafter", "a"), "--openai: cannot be combined"),
        (("--openai", "http://x", "--plain-field", "no"), "--plain-field: not JSON"),
        (("--openai", "http://x", "--plain-field", "[]"), "--plain-field: expected a JSON object"),
        (("--openai", "http://x", "--plain-field", "{}", "--reference", "http://y"), "--plain-field: cannot be"),
        (("--openai", "https://x", "--token-file", "file"), "--token-file: applies only to --verifier"),
        (("--openai", "https://x", "--tls-ca", "/nowhere/ca"), "--tls-ca: /nowhere/ca: No such file"),
        (("--openai", "https://x", "--tls-ca", "c", "--tls-server-name", "y"), "--tls-server-name: applies only"),
        (("--json", "/nowhere/x.json"), "--json /nowhere/x.json: cannot write"),
        (("--html", "/"), "--html /: cannot write"),
        (("--requests", "0"), "--requests"),
        (("--drafter", "nobody"), "--drafter nobody: no drafter of this name is attached"),
    ],
)
def test_wrong_usage(command: Command, verifier: FakeVerifier, arguments: tuple[str, ...], message: str) -> None:
    outcome = command("check", *arguments)
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err


def test_prompts_of_all_kinds_in_turn(tmp_path: Path) -> None:
    found = check_prompts([], 10)
    assert [prompt.kind for prompt in found[:5]] == ["code", "edit", "text", "data", "code, long context"]
    assert len(found) == 10 and len(speed_prompts(found)) == 8
    assert len(found[4].text) > 4 * len(found[0].text)
    one = tmp_path / "one.txt"
    one.write_text("Once upon a time")
    assert [(prompt.kind, prompt.text) for prompt in check_prompts([one], 2)] == [("one", "Once upon a time")] * 2


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://vllm:8000", "http://vllm:8000/v1"),
        ("http://vllm:8000/", "http://vllm:8000/v1"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
        ("https://host/openai/v1beta/chat/completions", "https://host/openai/v1beta"),
    ],
)
def test_the_path_of_an_endpoint(given: str, url: str) -> None:
    assert Endpoint.of("--openai", given, None, "a-model").url == url


class FakeEndpoint(ThreadingHTTPServer):
    """Completes prompts; `unsteady` endpoints answer differently each time, except with "plain" in the request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.unsteady = False
        self.status = 200
        self.most_requests: int | None = None
        """Number of the requests that it answers, if there is a limit; later ones are too many."""
        self.hangs = False
        """Whether it does not answer until it is closed."""
        self.asked, self.closing, self.answered = Event(), Event(), Event()
        self.cut = 0
        """Bytes at the end of an answer that it does not send."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "a-model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            number = len(self.server.bodies)
            if number - 1 == self.server.most_requests:
                self.server.status = 429
        if self.server.hangs:
            self.server.asked.set()
            self.server.closing.wait(PATIENCE)
            self.server.answered.set()
        text = f"{body['prompt'][:4]} {body['seed']}"
        if self.server.unsteady and "plain" not in body:
            text += f" {number}"
        self._answer({"choices": [{"text": text, "finish_reason": "length"}]})

    def _answer(self, value: dict[str, Any]) -> None:
        self.server.keys.add(self.headers["authorization"])
        data = json.dumps(value).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) - self.server.cut])

    def log_message(self, *arguments: Any) -> None:
        """Logs nothing."""


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


def test_a_steady_endpoint(command: Command, endpoint: FakeEndpoint, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    outcome = command("check", "--openai", endpoint.url, "--json", str(found), *SHORT)
    assert outcome.code == 0, outcome.err
    value = json.loads(found.read_text())
    assert value["subject"] == f"a-model at {endpoint.url}/v1"
    assert [case["compared"] for case in value["cases"]] == [4, 4]
    assert any("no plain decoding" in note for note in value["notes"])
    assert {body["temperature"] for body in endpoint.bodies} == {0.0, 0.8}
    assert {body["model"] for body in endpoint.bodies} == {"a-model"}
    stages = [line.partition(" (after ")[0] for line in outcome.err.splitlines()]
    cases = ("plain decoding", "the endpoint again", "the endpoint, 8 requests at once")
    assert stages == [f"comparing: {case}" for case in cases]


def test_an_endpoint_that_differs_from_its_plain_decoding(command: Command, endpoint: FakeEndpoint) -> None:
    endpoint.unsteady = True
    outcome = command("check", "--openai", f"{endpoint.url}/v1", "--plain-field", '{"plain": true}', *SHORT)
    assert outcome.code == 1
    assert "8 of 16 outputs differ" in outcome.err
    assert "promises plain decoding's distribution" in outcome.out
    assert "does not repeat its outputs" not in outcome.out


def test_an_endpoint_that_limits_requests(command: Command, endpoint: FakeEndpoint, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    endpoint.most_requests = 8  # those of the last case are too many
    outcome = command("check", "--openai", endpoint.url, "--json", str(found), *SHORT)
    assert outcome.code == 0, outcome.err
    last = json.loads(found.read_text())["cases"][-1]
    assert (last["compared"], "answered 429" in last["not_run"]) == (0, True)


def test_plain_decoding_that_does_not_repeat_itself(command: Command, endpoint: FakeEndpoint) -> None:
    endpoint.unsteady = True
    outcome = command("check", "--openai", endpoint.url, "--reference", endpoint.url, *SHORT)
    assert outcome.code == 1
    assert "does not repeat its outputs" in outcome.out


def test_an_endpoint_with_a_certificate_of_ones_own(command: Command, endpoint: FakeEndpoint, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("endpoint")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    endpoint.socket = context.wrap_socket(endpoint.socket, server_side=True)
    url = endpoint.url.replace("http:", "https:")
    outcome = command("check", "--openai", url, "--reference", url, "--tls-ca", str(authority.file), *SHORT)
    assert outcome.code == 0, outcome.err
    assert "CERTIFICATE_VERIFY_FAILED" in command("check", "--openai", url, *SHORT).err


@pytest.mark.parametrize(("text", "code"), [("\ufeffsecret\r\n", 0), ("# a key\nsecret\n", 2), ("\n", 2)])
def test_a_file_with_a_key(command: Command, endpoint: FakeEndpoint, tmp_path: Path, text: str, code: int) -> None:
    file = tmp_path / "key"
    file.write_text(text, "utf-8")
    outcome = command("check", "--openai", endpoint.url, "--api-key-file", str(file), *SHORT)
    assert outcome.code == code
    if code:
        assert outcome.err == f"draftwire: --api-key-file {file}: expected one key of ASCII characters without spaces\n"
    else:
        assert endpoint.keys == {"Bearer secret"}


def test_an_endpoint_that_breaks_off(command: Command, endpoint: FakeEndpoint) -> None:
    endpoint.cut = 1
    outcome = command("check", "--openai", endpoint.url, *SHORT)
    assert (outcome.code, f"{endpoint.url}/v1/models does not answer: IncompleteRead" in outcome.err) == (1, True)


def test_ctrl_c_does_not_wait_for_the_endpoint(endpoint: FakeEndpoint) -> None:
    endpoint.hangs = True
    request = check_requests(check_prompts((), 1), 4, 1)[0]

    async def interrupted() -> None:
        asking = asyncio.create_task(Endpoint.of("--openai", endpoint.url, None, None).complete(request))
        while not endpoint.asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asking.cancel()

    asyncio.run(interrupted())
    assert not endpoint.answered.is_set()


def test_an_endpoint_that_refuses(command: Command, endpoint: FakeEndpoint) -> None:
    endpoint.status = 503
    outcome = command("check", "--openai", endpoint.url, *SHORT)
    assert (outcome.code, f"{endpoint.url}/v1/models answered 503" in outcome.err) == (1, True)
