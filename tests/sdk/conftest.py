"""Verifiers without a model for the SDK's tests."""

from collections.abc import Iterator

import pytest

from draftwire import Client, RetryPolicy
from tests.sdk.fake_verifier import FakeVerifier

QUICK = RetryPolicy(attempts_per_address=3, initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def verifier() -> Iterator[FakeVerifier]:
    with FakeVerifier() as fake:
        yield fake


@pytest.fixture
def second_verifier() -> Iterator[FakeVerifier]:
    with FakeVerifier() as fake:
        yield fake


@pytest.fixture
def client(verifier: FakeVerifier) -> Iterator[Client]:
    with Client(verifier.address, timeout=20, retry=QUICK) as made:
        yield made
