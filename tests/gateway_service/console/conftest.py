"""The console in front of a verifier without a model."""

from collections.abc import Iterator

import httpx
import pytest

from draftwire import RetryPolicy
from tests.harness.console_server import serve_console
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE

QUICK = RetryPolicy(attempts_per_address=2, initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def verifier() -> Iterator[FakeVerifier]:
    with FakeVerifier() as fake:
        yield fake


@pytest.fixture
def http(verifier: FakeVerifier) -> Iterator[httpx.Client]:
    with (
        serve_console(verifier.address, retry=QUICK) as address,
        httpx.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        yield client
