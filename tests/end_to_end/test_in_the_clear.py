"""Unencrypted connections to other machines are made only if explicitly allowed."""

import os
import sys

import pytest

from draftwire import Client, InvalidFieldError
from tests.harness import processes
from tests.harness.checkout import MODELS, ROOT
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

ELSEWHERE = "192.0.2.1:50052"  # reserved for documentation (RFC 5737)


def ended(*command: str) -> str:
    """Returns the log of a process that cannot start."""
    environment = os.environ | processes.ENVIRONMENT
    ran = processes.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=LONG_PATIENCE,
    )  # fmt: skip
    assert ran.returncode in (1, 2), ran.stderr
    return ran.stderr


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (("verifier_service", "--model", str(MODELS / "target"), "--listen", "0.0.0.0:0"), "--listen"),
        (("drafter_service", "--model", str(MODELS / "draft"), "--listen", "[::]:0"), "--listen"),
        (
            ("drafter_service", "--model", str(MODELS / "draft"), "--listen", "127.0.0.1:0", "--verifier", ELSEWHERE),
            "--verifier",
        ),
        (("gateway_service", "--listen", "0.0.0.0:0"), "--listen"),
        (("gateway_service", "--listen", "127.0.0.1:0", "--verifier", ELSEWHERE), "--verifier"),
        (("draftwire.cli", "generate", "hello", "--verifier", ELSEWHERE), "is on another machine"),
    ],
)
def test_a_process_that_would_speak_in_the_clear_does_not_start(command: tuple[str, ...], flag: str) -> None:
    told = ended(*command)
    assert flag in told and "--insecure" in told and "Traceback" not in told


def test_a_drafter_elsewhere_is_not_attached(client: Client) -> None:
    with pytest.raises(InvalidFieldError, match=f"{ELSEWHERE} is on another machine") as refused:
        client.drafters.attach(ELSEWHERE)
    assert refused.value.fields == ("address",)
    assert client.drafters.list() == []
