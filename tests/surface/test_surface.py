"""The public surface stays the same: changes are intended, and show in surface.json."""

import json
from collections.abc import Iterator
from typing import Any

from tests.surface.surface import FILE, as_json, collect


def differences(kept: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yields what is missing, new or different, by its place."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for name in sorted(kept.keys() | found.keys()):
            where = f"{place} > {name}" if place else name
            if name not in found:
                yield f"{where}: is gone"
            elif name not in kept:
                yield f"{where}: is new"
            else:
                yield from differences(kept[name], found[name], where)
    elif isinstance(kept, list) and isinstance(found, list):
        yield from (f"{place}: {each} is gone" for each in kept if each not in found)
        yield from (f"{place}: {each} is new" for each in found if each not in kept)
    elif kept != found:
        yield f"{place}: is {found!r}, was {kept!r}"


def test_it_is_as_it_was() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    found = list(differences(kept, as_json(collect())))
    assert not found, "\n".join(["if this is meant, run: python -m tests.surface.surface", *found])


def test_what_changed_is_named() -> None:
    kept = {"commands": {"draftwire chat": {"--seed": {"default": None}}, "draftwire top": {}}, "metrics": ["a", "b"]}
    found = {"commands": {"draftwire chat": {"--seed": {"default": 1}}, "draftwire new": {}}, "metrics": ["b", "c"]}
    assert list(differences(kept, found)) == [
        "commands > draftwire chat > --seed > default: is 1, was None",
        "commands > draftwire new: is new",
        "commands > draftwire top: is gone",
        "metrics: a is gone",
        "metrics: c is new",
    ]
