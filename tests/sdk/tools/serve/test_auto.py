"""The drafters that are chosen in place of `auto`."""

from typing import Any

import pytest

from draftwire_tools.serve import auto
from draftwire_tools.serve.auto import AUTO, LOOKUP, choose


def answering(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> list[tuple[Any, ...]]:
    """Has the choice answered; returns the list of what was asked."""
    asked: list[tuple[Any, ...]] = []

    def suggested(model: str, device: str, *, fetch: bool) -> dict[str, Any]:
        asked.append((model, device, fetch))
        return {"address": None, "notes": ["a reason"]} | answer

    monkeypatch.setattr(auto, "suggested", suggested)
    return asked


def test_named_drafters_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch)
    found = choose("target", ["small", "local:mtp"], "cpu")
    assert (found.drafts, found.chosen, found.notes) == (("small", "local:mtp"), frozenset(), ())
    assert asked == []


def test_a_chosen_model_drafts_in_the_verifier_next_to_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, address="local:draft?model=/cache/small.gguf")
    found = choose("target", [AUTO], "cuda:1")
    assert found.drafts == ("local:draft?model=/cache/small.gguf", LOOKUP)
    assert (found.chosen, found.notes) == (frozenset(found.drafts), ("a reason",))
    assert asked == [("target", "cuda:1", True)]


def test_chosen_drafters_take_the_place_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, address="local:mtp")
    found = choose("target", ["first", AUTO, "local:ngram"], "cpu")
    assert found.drafts == ("first", "local:mtp", "local:ngram")
    assert found.chosen == frozenset(["local:mtp"])


def test_lookup_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    assert choose("target", [AUTO], "cpu").drafts == (LOOKUP,)
