"""The page of supported models lists all classes, and what it says of a sample of them is so."""

import pytest

from scripts import supported_models
from scripts.supported_models import FAMILIES, PAGE, differences, listed, page_of, sampled
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


def test_each_class_that_does_not_run_has_a_reason() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 4 and cells[2] in (REFUSED, NOT_TINY):
            assert cells[3], line


def test_families_are_classes() -> None:
    assert set(FAMILIES.values()) <= CLASSES.keys()


def test_differences_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {name: Outcome(RUNS, "") for name in CLASSES}
    page = page_of(outcomes, "2026-11-25")
    assert listed(page) == dict.fromkeys(CLASSES, RUNS)
    monkeypatch.setattr(supported_models, "tried", lambda name: Outcome(FUSED, ""))
    changed = (
        "\n".join(line for line in page.splitlines() if "`GPT2LMHeadModel`" not in line) + "\n| `Gone` | x | runs |  |"
    )
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
