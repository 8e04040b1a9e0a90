"""Requests generated from the gateway's own description, in front of a real verifier: no fault, conforming answers."""

from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from draftwire import Client
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

EXAMPLES = 80
OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/health"),
    ("GET", "/ping"),
    ("GET", "/version"),
    ("GET", "/metrics"),
]
FINE = {
    "/v1/completions": {"prompt": "def f(", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 4},
    "/v1/responses": {"input": "def f(", "max_output_tokens": 4},
    "/tokenize": {"prompt": "def f("},
    "/detokenize": {"tokens": [5]},
}
"""Bodies that succeed: generated ones seldom do, and they differ between runs."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_an_operation(real_gateway: ServiceProcess, verifier: ServiceProcess, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{real_gateway.url}/openapi.json")
    operation = schema[path][method]
    statuses = set()
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if method == "POST":  # also what the description forbids
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    if path in FINE:
        cases |= strategies.just(operation.Case(body=FINE[path], media_type="application/json"))

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases)
    def run(case: schemathesis.Case) -> None:
        response = case.call(base_url=real_gateway.url, timeout=60)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    run()
    assert 200 in statuses or path == "/v1/models/{model}"  # no generated name is the model's
    with Client(verifier.address, timeout=60) as client:
        eventually(lambda: client.model_info().engine.used_slots == 0, "nothing is left running")


@pytest.mark.parametrize(
    "element", ["1", "-1", '"a"', "{}", "[]", '{"role":"user","content":"a"}', '{"a":[{"a":1}]}', "null"]
)
@pytest.mark.parametrize(
    ("path", "around"),
    [
        ("/v1/responses", '{"input": [HERE]}'),
        ("/v1/responses", '{"input": [{"role": "user", "content": [HERE]}]}'),
        ("/v1/chat/completions", '{"messages": [HERE]}'),
        ("/v1/chat/completions", '{"messages": [{"role": "assistant", "tool_calls": [HERE]}]}'),
        ("/v1/completions", '{"prompt": [HERE]}'),
        ("/v1/completions", '{"prompt": "a", "bad_words": [HERE]}'),
        ("/v1/completions", '{"prompt": "a", "unknown": [HERE]}'),
        ("/detokenize", '{"tokens": [HERE]}'),
    ],
)
def test_a_body_of_many_values_takes_little_memory(
    real_gateway: ServiceProcess, path: str, around: str, element: str
) -> None:
    size = 4 * 1024 * 1024
    body = around.replace("HERE", ",".join([element] * ((size - len(around)) // (len(element) + 1))))
    _post(real_gateway, path, "[1," + "1," * 100_000 + "1]")  # what a first body loads is none of this one's
    before = _peak_memory(real_gateway.pid)
    response = _post(real_gateway, path, body)
    assert response.status_code == 400, response.text
    assert _peak_memory(real_gateway.pid) - before <= 4 * size


def _post(gateway: ServiceProcess, path: str, body: str) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(gateway.url + path, content=body, headers=headers, timeout=PATIENCE)


def _peak_memory(pid: int) -> int:
    """Returns the most memory that a process has had, in bytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_every_operation_is_tried(real_gateway: ServiceProcess) -> None:
    described = httpx.get(f"{real_gateway.url}/openapi.json", timeout=PATIENCE).json()["paths"]
    assert {(method.upper(), path) for path, operations in described.items() for method in operations} == set(
        OPERATIONS
    )
