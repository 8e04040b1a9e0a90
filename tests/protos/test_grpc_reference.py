"""The committed reference of the contract is up to date with the protos."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_up_to_date() -> None:
    generator = ROOT / "scripts" / "generate_grpc_reference.py"
    result = subprocess.run(
        [sys.executable, str(generator), "--check"], capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_comments_make_it_to_the_page() -> None:
    page = (ROOT / "docs" / "grpc-api.md").read_text(encoding="utf-8")
    items = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(items) > 100
    bare = r"- `\w+`:( (optional |repeated )?(`[\w.]+`|\[\w+\]\(#\w+\))\.)?"
    assert [line for line in items if re.fullmatch(bare, line)] == []  # buf requires a comment on everything
    assert "Most live nodes in one sequence's tree." in " ".join(page.split())
    assert "stream of [DraftRequest](#draftrequest)" in page
    assert "map of `string` to `string`" in page
