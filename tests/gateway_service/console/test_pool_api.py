"""Changes of the pool through the console."""

import grpc
import httpx
import pytest

from tests.harness.stand_ins.fake_verifier import FakeVerifier, rich_status

API = "/console/api/"


def test_attach_and_detach(http: httpx.Client) -> None:
    drafter = http.post(API + "drafters/attach", json={"address": "far:50052", "name": "fast"}).json()
    assert (drafter["name"], drafter["address"], drafter["state"]) == ("fast", "far:50052", "ready")
    assert (drafter["acceptance_rate"], drafter["step_seconds"], drafter["response_seconds"]) == (0.7, 0.003, None)
    assert http.post(API + "drafters/attach", json={"address": "far:50052"}).json()["name"] == "far:50052"
    assert http.post(API + "drafters/detach", json={"name": "fast"}).json()["name"] == "fast"


def test_swap(http: httpx.Client, verifier: FakeVerifier) -> None:
    done = http.post(API + "drafters/swap", json={"old": "a", "new": "b"}).json()
    assert (done["drafter"]["name"], done["moved_sequences"]) == ("b", 3)
    assert (verifier.pool_requests[0].old_name, verifier.pool_requests[0].new_name) == ("a", "b")


def test_rollout(http: httpx.Client) -> None:
    rollout = http.post(API + "rollouts/start", json={"old": "a", "new": "b", "share": 0.25}).json()
    assert (rollout["share"], rollout["state"]) == (0.25, "running")
    assert rollout["new"] == {"name": "b", "sequences": 0, "acceptance_rate": 0.6}
    rollout = http.post(API + "rollouts/finish", json={"new": "b", "promote": False}).json()
    assert (rollout["state"], rollout["reason"]) == ("withdrawn", "asked for")
    missing = http.post(API + "rollouts/finish", json={"new": "b", "promote": True})
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "no rollout of b")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("drafters/attach", {}, "address"),
        ("drafters/attach", {"address": ""}, "address"),
        ("drafters/detach", {"name": 3}, "name"),
        ("drafters/swap", {"old": "a"}, "new"),
        ("rollouts/start", {"old": "a", "new": "b", "share": None}, "share"),
        ("rollouts/finish", {"new": "b", "promote": "yes"}, "promote"),
    ],
)
def test_bad_input(http: httpx.Client, verifier: FakeVerifier, path: str, body: dict[str, object], field: str) -> None:
    answer = http.post(API + path, json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert verifier.calls == []


def test_a_change_that_fails(http: httpx.Client, verifier: FakeVerifier) -> None:
    verifier.failures = [rich_status(grpc.StatusCode.FAILED_PRECONDITION, "a swap is under way", "BUSY")]
    answer = http.post(API + "drafters/swap", json={"old": "a", "new": "b"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "a swap is under way")
