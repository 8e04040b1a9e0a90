"""The file of models."""

import re
from pathlib import Path

import pytest

from gateway_service.models.model_file import ModelEntry, ModelFile, TargetEntry

FILE = """
[small]
verifiers = ["a:1", "b:2?weight=2"]

["org/large"]
aliases = ["large"]
[["org/large".targets]]
verifiers = ["c:3"]
share = 90
[["org/large".targets]]
verifiers = ["d:4"]
share = 10
"""


def anywhere(address: str) -> None:
    pass


def loopback_only(address: str) -> None:
    raise ValueError(f"{address} is on another machine")


def test_names_verifiers_aliases_and_shares(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(FILE)
    assert ModelFile(path, anywhere)() == (
        ModelEntry(("small",), (TargetEntry(("a:1", "b:2?weight=2")),)),
        ModelEntry(("org/large", "large"), (TargetEntry(("c:3",), 90), TargetEntry(("d:4",), 10))),
    )


def test_it_is_read_again_and_is_the_same_object_until_then(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(FILE)
    file = ModelFile(path, anywhere)
    first = file()
    path.write_text("[small")
    assert file() is first
    path.write_text('[small]\nverifiers = ["e:5"]\n')
    assert file() == (ModelEntry(("small",), (TargetEntry(("e:5",)),)),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no model"),
        ("[small", "not valid TOML"),
        ("small = 1", "small: expected a table"),
        ("[small]", "small: needs either verifiers or targets"),
        ('[small]\nverifiers = ["a:1"]\n[[small.targets]]\nverifiers = ["b:2"]', "small: needs either"),
        ("[[small.targets]]\nverifiers = []", "small.targets.0.verifiers"),
        ('[[small.targets]]\nverifiers = ["a:1"]\nshare = 0', "small: targets: one of them needs a share above 0"),
        ('[[small.targets]]\nverifiers = ["a:1"]\nshare = -1', "small.targets.0.share"),
        ('[small]\nverifiers = ["nowhere"]', "small: 'nowhere' is not the address"),
        ('[small]\nverifiers = ["a:1"]\n[large]\nverifiers = ["b:2"]\naliases = ["small"]', "small is the name of two"),
        ('[small]\nverifiers = ["a:1"]\nweight = 2', "small.weight: extra inputs"),
        ('[""]\nverifiers = ["a:1"]', "not a valid name"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as refused:
        ModelFile(path, anywhere)
    assert str(path) in str(refused.value)


def test_addresses_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(FILE)
    with pytest.raises(ValueError, match="small: a:1 is on another machine"):
        ModelFile(path, loopback_only)
    with pytest.raises(ValueError, match="cannot read"):
        ModelFile(tmp_path / "missing", anywhere)
