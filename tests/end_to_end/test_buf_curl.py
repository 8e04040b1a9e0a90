"""The services describe themselves: a generic client can use them through reflection alone."""

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.rpc import error_details_pb2

from draftwire import Client
from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

REQUEST = {
    "text": "def fib(n):",
    "max_tokens": 8,
    "ignore_eos": True,
    "sampling": {"temperature": 0.8, "seed": 7},
}

ROOT = Path(__file__).resolve().parents[2]
BUF = ROOT / "node_modules" / ".bin" / "buf"

Curl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def buf() -> Path:
    """buf comes from npm; `npm ci` runs here if it has not run yet."""
    skip_without("node", "npm")
    if not BUF.exists():
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
    return BUF


@pytest.fixture
def curl(buf: Path, client: Client) -> Curl:
    def run(*arguments: str, address: str | None = None) -> "subprocess.CompletedProcess[str]":
        *flags, path = arguments
        url = f"http://{address or client.address}{path}"
        return subprocess.run(
            [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *flags, url],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return run


def answers(done: "subprocess.CompletedProcess[str]") -> list[Any]:
    """Returns the printed JSON objects in order."""
    assert done.returncode == 0, done.stderr
    found, text, decoder = [], done.stdout.strip(), json.JSONDecoder()
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].lstrip()
    return found


def test_list_services(curl: Curl, good_drafter: str) -> None:
    both = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    verifier = curl("--list-services", "")
    assert set(verifier.stdout.split()) == both | {
        "draftwire.v1.VerifierService",
        "draftwire.v1.DrafterPoolService",
    }, verifier.stderr
    drafter = curl("--list-services", "", address=good_drafter)
    assert set(drafter.stdout.split()) == both | {"draftwire.v1.DrafterService"}, drafter.stderr


def test_get_model_info(curl: Curl, client: Client, good_drafter: str) -> None:
    (info,) = answers(curl("/draftwire.v1.VerifierService/GetModelInfo"))
    assert info["model"]["vocabSize"] == client.model_info().vocab_size
    assert info["engine"]["totalSlots"] > 0
    (drafter,) = answers(curl("/draftwire.v1.DrafterService/GetModelInfo", address=good_drafter))
    assert drafter["info"]["model"]["tokenizerSha256"] == info["model"]["tokenizerSha256"]


def test_generate(curl: Curl, client: Client) -> None:
    expected = client.generate("def fib(n):", max_tokens=8, temperature=0.8, seed=7, ignore_eos=True)
    started, *chunks, finished = answers(curl("-d", json.dumps(REQUEST), "/draftwire.v1.VerifierService/Generate"))
    assert started["started"]["seed"] == "7"
    assert [token for each in chunks for token in each["chunk"]["tokenIds"]] == expected.token_ids
    text = "".join(each["chunk"].get("text", "") for each in chunks) + finished["finished"].get("text", "")
    assert text == expected.text
    assert finished["finished"]["finishReason"] == "FINISH_REASON_LENGTH"


def test_verify(curl: Curl, client: Client) -> None:
    expected = client.generate("def fib(n):", max_tokens=8, temperature=0.8, seed=7, ignore_eos=True)
    call = curl("-d", json.dumps({"start": {"request": REQUEST}}), "/draftwire.v1.VerifierService/Verify")
    opened, *others = answers(call)
    assert opened["opened"]["tokenIds"] == expected.prompt_token_ids
    committed = [token for each in others if "verdict" in each for token in each["verdict"]["tokenIds"]]
    assert committed == expected.token_ids
    assert others[-1]["event"]["finished"]["finishReason"] == "FINISH_REASON_LENGTH"


def test_drafters(curl: Curl, client: Client, good_drafter: str) -> None:
    request = json.dumps({"address": good_drafter, "name": "good"})
    answers(curl("-d", request, "/draftwire.v1.DrafterPoolService/AttachDrafter"))
    (listed,) = answers(curl("/draftwire.v1.DrafterPoolService/ListDrafters"))
    assert [(each["name"], each["state"]) for each in listed["drafters"]] == [("good", "DRAFTER_STATE_READY")]
    answers(curl("-d", '{"name": "good"}', "/draftwire.v1.DrafterPoolService/DetachDrafter"))
    assert client.drafters.list() == []


def test_health(curl: Curl) -> None:
    (state,) = answers(curl("-d", '{"service": "draftwire.v1.VerifierService"}', "/grpc.health.v1.Health/Check"))
    assert state == {"status": "SERVING"}


def test_an_error(curl: Curl) -> None:
    done = curl("-d", '{"text": "x", "sampling": {"top_p": 1.5}}', "/draftwire.v1.VerifierService/Generate")
    assert done.returncode != 0
    error = json.loads(done.stderr)
    assert error["code"] == "invalid_argument"
    assert "sampling.top_p" in error["message"]
    values = {each["type"]: base64.b64decode(each["value"] + "==") for each in error["details"]}
    info = error_details_pb2.ErrorInfo.FromString(values["google.rpc.ErrorInfo"])
    assert (info.domain, info.reason) == ("draftwire", "INVALID_FIELD")
    bad = error_details_pb2.BadRequest.FromString(values["google.rpc.BadRequest"])
    assert bad.field_violations[0].field == "sampling.top_p"
