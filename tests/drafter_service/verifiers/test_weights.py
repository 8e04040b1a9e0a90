"""Parsing of weights by verifier."""

import pytest

from drafter_service.settings import DrafterSettings
from drafter_service.verifiers.shares import parse_weights
from draftwire_core.runtime.process.settings import load_settings


def test_names_are_of_tokens_and_hosts() -> None:
    entries = ["alice=2", "10.0.0.7=0.5", "2001:db8::7=100", "a=b=1"]
    assert parse_weights(entries) == {"alice": 2.0, "10.0.0.7": 0.5, "2001:db8::7": 100.0, "a=b": 1.0}
    assert parse_weights([]) == {}


@pytest.mark.parametrize(
    "entry", ["alice", "=2", "alice=", "alice=two", "alice=0", "alice=-1", "alice=101", "alice=nan"]
)
def test_what_is_no_weight(entry: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=WEIGHT, a weight from 0.01 to 100"):
        parse_weights(["bob=1", entry])


def test_a_verifier_has_one_weight() -> None:
    with pytest.raises(ValueError, match="'alice' twice"):
        parse_weights(["alice=1", "alice=1"])


def test_the_flag_is_repeated() -> None:
    flags = ["--model", "m", "--verifier-weight", "alice=2", "--verifier-weight", "bob=3"]
    assert load_settings(DrafterSettings, flags).verifier_weight == ("alice=2", "bob=3")
