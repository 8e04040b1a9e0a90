"""The file of named keys."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway_service.keys.key_file import KeyFile, NamedKey, digest_of

SECRET = "alice-0123456789"


def test_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[alice]\nsha256 = "{digest_of(SECRET).hex()}"\nmodels = ["target", "small"]\nrequests_per_minute = 60\n'
        'tokens_per_minute = 10000\nmax_running = 4\nexpires = 2027-01-01T00:00:00Z\n[bob]\nkey = "bob-0123456789abc"\n'
        "operator = true\n"
    )
    keys = KeyFile(path).keys
    alice = keys[digest_of(SECRET)]
    end = datetime(2027, 1, 1, tzinfo=UTC)
    assert alice == NamedKey("alice", frozenset({"target", "small"}), 60, 10000, 4, end)
    assert alice.permits("small") and not alice.permits("large")
    assert not alice.expired(end.timestamp() - 1) and alice.expired(end.timestamp())
    bob = keys[digest_of("bob-0123456789abc")]
    assert bob == NamedKey("bob", operator=True)
    assert bob.permits("anything") and not bob.expired(1e12)


def test_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[alice]\nkey = "{SECRET}"\n')
    file = KeyFile(path)
    path.write_text("half a fi")
    assert file.keys[digest_of(SECRET)] == NamedKey("alice")
    path.write_text(f'[alice]\nkey = "{SECRET}"\nmax_running = 2\n')
    assert file.keys[digest_of(SECRET)] == NamedKey("alice", max_running=2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no key"),
        ("[alice", "not valid TOML"),
        ("alice = 1", "alice: expected a table"),
        (f'["a b"]\nkey = "{SECRET}"', "'a b' is not a valid key name"),
        ("[alice]", "alice: needs either key or sha256"),
        (f'[alice]\nkey = "{SECRET}"\nsha256 = "{"a" * 64}"', "alice: needs either key or sha256"),
        ('[alice]\nkey = "0123"', "alice: key: needs at least 16 characters"),
        ('[alice]\nsha256 = "0123"', "alice.sha256"),
        (f'[alice]\nkey = "{SECRET}"\nmodels = []', "alice.models"),
        (f'[alice]\nkey = "{SECRET}"\nmax_running = 0', "alice.max_running"),
        (f'[alice]\nkey = "{SECRET}"\nexpires = 2027-01-01T00:00:00', "alice.expires: input should have timezone"),
        (f'[alice]\nkey = "{SECRET}"\nlimit = 1', "alice.limit: extra inputs"),
        (f'[alice]\nkey = "{SECRET}"\n[bob]\nkey = "{SECRET}"', "alice and bob have the same key"),
    ],
)
def test_a_wrong_file_is_explained_without_its_secrets(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as refused:
        KeyFile(path)
    assert str(path) in str(refused.value) and SECRET not in str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        KeyFile(tmp_path / "keys.toml")
