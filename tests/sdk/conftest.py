"""Verifiers without a model for the SDK's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire import Client, RetryPolicy, SpreadPolicy, Verifier
from draftwire._calls.spreading import ranked
from tests.harness.command import Command
from tests.harness.stand_ins.fake_service import FAKE_SERVICE
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
QUICK = RetryPolicy(attempts_per_address=3, initial_backoff=0.01, max_backoff=0.02)


def in_order(*addresses: str) -> list[Verifier]:
    """Returns verifiers of which all but the first are standbys."""
    return [Verifier(address, weight=1.0 if index == 0 else 0.0) for index, address in enumerate(addresses)]


def by_rank(prompt: str, *fakes: FakeVerifier) -> list[FakeVerifier]:
    """Returns the verifiers in the order in which they should serve a prompt."""
    of = {fake.address: fake for fake in fakes}
    key = prompt.encode()[: SpreadPolicy().prefix_bytes]
    return [of[each.address] for each in ranked(key, [Verifier(address) for address in of])]


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
    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


@pytest.fixture
def fake_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = [str(ROOT), str(ROOT / "sdk")]
    for name in ("fake_service", "verifier_service", "drafter_service", "torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(FAKE_SERVICE.format(path=path, pids=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    return "fake_service"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verifier: FakeVerifier) -> Command:
    monkeypatch.setenv("DRAFTWIRE_VERIFIER", verifier.address)
    return Command(monkeypatch, capsys)
