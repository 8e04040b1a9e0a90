"""The committed stubs are up to date with the protos, and run with the oldest libraries that pyproject.toml allows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "sdk" / "draftwire" / "v1"


def lower_bound(package: str) -> str:
    """Returns the oldest version of `package` that the SDK may be installed with."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [d for d in dependencies if re.match(rf"{package}>=", d)]
    return bound.partition(">=")[2].partition(",")[0]


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_stubs_are_up_to_date() -> None:
    generator = ROOT / "scripts" / "generate_stubs.py"
    result = subprocess.run(
        [sys.executable, str(generator), "--check"], capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("package", "stubs", "generated_for"),
    [
        ("protobuf", "*_pb2.py", r"# Protobuf Python Version: ([\d.]+)"),
        ("grpcio", "*_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '([\d.]+)'"),
    ],
)
def test_stubs_run_with_the_oldest_allowed_library(package: str, stubs: str, generated_for: str) -> None:
    versions = {re.search(generated_for, path.read_text())[1] for path in STUBS.glob(stubs)}
    assert len(versions) == 1
    [version] = versions
    oldest = as_numbers(lower_bound(package))
    assert as_numbers(version)[: len(oldest)] <= oldest
