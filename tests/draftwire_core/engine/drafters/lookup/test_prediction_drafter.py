"""Predicted output: followed from its first token, and found again after the output has deviated from it."""

import random

import pytest

from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from tests.harness.engine.drafter_reader import DrafterReader

PROMPT = [1, 2, 3]
EXPECTED = random.Random(0).sample(range(900), 200)


def reader(prediction: list[int], prompt: list[int] = PROMPT) -> DrafterReader:
    made = DrafterReader(prediction_drafter(prediction, len(prompt)), prompt)
    made.grow()
    return made


def after(output: list[int], prediction: list[int] = EXPECTED) -> list[int]:
    """Returns the tokens drafted after an output, most likely first."""
    drafts = reader(prediction)
    for token in output:
        drafts.commit([token])
    children = drafts.tree.root.children.values()
    return [node.token for node in sorted(children, key=lambda node: -node.log_prob)]


def test_it_is_drafted_before_anything_is_known() -> None:
    drafts = reader(EXPECTED)
    assert drafts.likeliest()[:3] == EXPECTED[:3]
    assert drafts.follow(EXPECTED) < 20


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ([*EXPECTED[:50], 950, *EXPECTED[51:]], "one token replaced"),
        ([*EXPECTED[:50], 950, 951, 952, *EXPECTED[53:]], "three replaced"),
        ([*EXPECTED[:50], *range(950, 960), *EXPECTED[50:]], "ten inserted"),
        ([*EXPECTED[:50], *EXPECTED[90:]], "forty left out"),
        ([*EXPECTED[120:], *EXPECTED[:120]], "in another order"),
        ([950, *EXPECTED], "another first token"),
    ],
)
def test_edits_cost_few_steps(changed: list[int], name: str) -> None:
    assert reader(EXPECTED).follow(changed) < 40


def test_after_one_other_token_both_readings_are_drafted() -> None:
    assert set(after([*EXPECTED[:20], 950])[:2]) == {EXPECTED[20], EXPECTED[21]}, "inserted, or in place of one"


def test_after_a_gap_it_is_looked_for_where_the_last_tokens_stand_again() -> None:
    assert EXPECTED[41] in after([*EXPECTED[:20], EXPECTED[40]])
    assert after([*EXPECTED[:20], *EXPECTED[150:152]]) == [EXPECTED[152]]


def test_of_equal_places_the_nearest() -> None:
    prediction = [*range(100, 110), 7, 8, 50, *range(200, 210), 7, 8, 60, *range(300, 400), 7, 8, 70]
    assert after([*range(100, 110), 7, 8, 50, *range(200, 205), 900, 901, 7, 8], prediction)[0] == 60


def test_its_end_is_one() -> None:
    assert after(EXPECTED) == []
    assert reader([]).tree.size == 0


def test_a_wrong_one_is_asked_for_little() -> None:
    drafts = reader(EXPECTED)
    for token in range(900, 960):
        drafts.commit([token])
    assert drafts.tree.size <= 4


def test_the_prompt_is_no_output() -> None:
    drafts = reader(EXPECTED, prompt=EXPECTED[:30])
    assert drafts.likeliest()[:3] == EXPECTED[:3]


def test_a_sequence_that_has_output_already() -> None:
    made = DrafterReader(prediction_drafter(EXPECTED, len(PROMPT)), [*PROMPT, *EXPECTED[:30]])
    made.grow()
    assert made.likeliest()[:3] == EXPECTED[30:33]
