"""Programs check for the packages of their extra before they start."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from draftwire_core.runtime.process.program import NEEDED as SERVICES
from gateway_service.__main__ import _NEEDED as GATEWAY

PYPROJECT = Path(__file__).resolve().parents[4] / "pyproject.toml"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, Sequence[str]]:
    """The distributions of each importable package: it takes most of a second to look at all that are installed."""
    return packages_distributions()


@pytest.mark.parametrize(("extra", "needed"), [("serve", SERVICES), ("gateway", GATEWAY)])
def test_extras(extra: str, needed: Sequence[str], distributions: Mapping[str, Sequence[str]]) -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    names = {canonical(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in declared}
    # A namespace, as opentelemetry is, belongs to several distributions.
    provided = [{canonical(name) for name in distributions[package]} for package in needed]
    assert all(each & names for each in provided) and names <= set().union(*provided)
