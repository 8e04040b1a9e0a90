"""The page of supported models lists all classes, and what it says of a sample of them is so."""

import pytest

from scripts.docs import supported_models
from scripts.docs.supported_models import FAMILIES, PAGE, differences, listed, page_with, part_of, sampled
from tests.harness.models.model_trial import (
    FUSED,
    NOT_TINY,
    REFUSED,
    RUNS,
    Outcome,
    causal_classes,
    multimodal_classes,
    tried,
)

SAMPLE = 16
CLASSES = {**causal_classes(), **multimodal_classes()}


def test_it_lists_every_class() -> None:
    assert not list(differences(PAGE.read_text(encoding="utf-8"), []))


def test_refused_classes_stand_by_their_causes() -> None:
    outcomes = {
        "BartForCausalLM": Outcome(REFUSED, "logits of the scene 'tree' are 0.2 away (up to 0.1); it counts positions"),
        "LlamaForCausalLM": Outcome(FUSED, ""),
        "BloomForCausalLM": Outcome(REFUSED, "its `code` fails (twice): KeyError"),
    }
    part = part_of({name: outcomes.get(name, Outcome(NOT_TINY, "x")) for name in CLASSES}, "2026-11-25")
    assert "    - it counts positions: `BartForCausalLM`.\n    - its 'code' fails: `BloomForCausalLM`.\n" in part


def test_families_are_classes() -> None:
    assert set(FAMILIES.values()) <= CLASSES.keys()


def test_differences_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {name: Outcome(RUNS, "") for name in CLASSES}
    page = page_with(PAGE.read_text(encoding="utf-8"), part_of(outcomes, "2026-11-25"))
    assert listed(page) == dict.fromkeys(CLASSES, RUNS)
    monkeypatch.setattr(supported_models, "tried", lambda name: Outcome(FUSED, ""))
    changed = page.replace("`GPT2LMHeadModel`", "`Gone`")
    assert list(differences(changed, ["LlamaForCausalLM"])) == [
        "GPT2LMHeadModel is not in the page",
        "Gone is in the page, but not in transformers",
        "LlamaForCausalLM is listed as runs, but is fused",
    ]


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("LlamaForCausalLM", FUSED, ""),
        ("LlavaForConditionalGeneration", FUSED, ""),
        ("BloomForCausalLM", REFUSED, "no layer attends through transformers' attention interface"),
        ("BlipForConditionalGeneration", REFUSED, "transformers' own forward pass of a text fails: TypeError"),
    ],
)
def test_a_trial_says_what_came_of_it(name: str, kind: str, reason: str) -> None:
    outcome = tried(name)
    assert outcome.kind == kind
    assert outcome.reason.startswith(reason)


@pytest.mark.slow
class TestSample:
    def test_it_lists_every_class_as_it_is(self) -> None:
        assert not list(differences(PAGE.read_text(encoding="utf-8"), sampled(SAMPLE)))
