"""Learners that wait for nothing long."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwire_core.training.learning import further_verifier, learning_loop
from tests.harness.stand_ins.learning_verifier import Learning


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BACKOFF", "_LOOK_SECONDS", "_POLL_SECONDS"):
        monkeypatch.setattr(learning_loop, name, 0.02)
    monkeypatch.setattr(further_verifier, "_BACKOFF", 0.02)


@pytest.fixture
def learning(draft: Path, tmp_path: Path) -> Learning:
    return Learning(draft, tmp_path / "learned")
