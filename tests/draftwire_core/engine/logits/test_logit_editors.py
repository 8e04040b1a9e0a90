"""Each logit change against a loop over rows and tokens, on trees; and bit by bit against the row alone."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.logits.logit_changes import NO_CHANGES, LogitChanges
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.logits.processors import editors_of

VOCABULARY = 50
ENDS = (3, 7)
ALL = LogitChanges(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.7,
    logit_bias={4: 2.5, 9: -100.0, 11: 0.125},
    allowed_token_ids=[*range(2, 40), 5],
    banned_token_ids=[17, 2],
    bad_words=[[5], [6, 8], [6, 9], [10, 6, 8], [8, 8, 8]],
    min_tokens=9,
)
EACH = {
    "repetition": LogitChanges(repetition_penalty=1.3),
    "repetition below 1": LogitChanges(repetition_penalty=0.5),
    "presence": LogitChanges(presence_penalty=1.5),
    "frequency": LogitChanges(frequency_penalty=0.3),
    "bias": LogitChanges(logit_bias=ALL.logit_bias),
    "allowed": LogitChanges(allowed_token_ids=ALL.allowed_token_ids),
    "banned": LogitChanges(banned_token_ids=ALL.banned_token_ids),
    "bad words": LogitChanges(bad_words=ALL.bad_words),
    "least length": LogitChanges(min_tokens=9),
    "all": ALL,
}


def by_hand(logits: Tensor, changes: LogitChanges, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """Edits one row [V] after a text, token by token, as sampling.proto specifies."""
    row = logits.tolist()
    begun = [
        word[-1]
        for word in changes.bad_words
        if len(word) <= len(output) + 1 and list(output)[len(output) + 1 - len(word) :] == list(word[:-1])
    ]
    for token in range(VOCABULARY):
        if token in prompt or token in output:
            row[token] = (
                row[token] / changes.repetition_penalty if row[token] > 0 else row[token] * changes.repetition_penalty
            )
        if token in output:
            row[token] -= changes.presence_penalty
        row[token] -= changes.frequency_penalty * list(output).count(token)
        row[token] += changes.logit_bias.get(token, 0.0)
        if (
            (changes.allowed_token_ids and token not in changes.allowed_token_ids)
            or token in changes.banned_token_ids
            or token in begun
            or (token in ENDS and len(output) < changes.min_tokens)
        ):
            row[token] = -math.inf
    return torch.tensor(row, dtype=torch.float64)


def random_rows(rng: random.Random, nodes: int) -> TreeRows:
    parents = [-1, *(rng.randrange(row) for row in range(1, nodes + 1))]
    return TreeRows(parents, [-1, *(rng.choice([5, 6, 8, 10, rng.randrange(VOCABULARY)]) for _ in range(nodes))])


def edited(
    logits: Tensor, changes: LogitChanges, prompt: Sequence[int], output: Sequence[int], rows: TreeRows
) -> Tensor:
    """Edits with new editors."""
    found = logits.clone()
    for editor in editors_of(changes, prompt, output, ENDS):
        editor.prepare(rows)
        editor.edit(found, rows)
    return found


@pytest.mark.parametrize("name", EACH)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_as_by_hand_and_the_same_bits_alone(name: str, seed: int) -> None:
    """Editors that follow a sequence step by step do what new editors do with each row's text as committed."""
    rng, changes = random.Random(seed), EACH[name]
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
    output = [rng.choice([5, 6, 8, 10]) for _ in range(rng.randint(0, 4))]
    editors = editors_of(changes, prompt, output, ENDS)
    for step in range(5):
        rows = random_rows(rng, rng.choice([0, 0, 3, 12]))
        logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed + step)) * 5
        for editor in editors:
            editor.prepare(rows)
        for _ in range(2):  # a step may be repeated
            found = logits.clone()
            for editor in editors:
                editor.edit(found, rows)
        for row in range(len(rows)):
            text = [*output, *rows.path(row)]
            torch.testing.assert_close(
                found[row].double(), by_hand(logits[row], changes, prompt, text), rtol=1e-6, atol=1e-6
            )
            alone = edited(logits[row : row + 1], changes, prompt, text, TreeRows([-1], [-1]))
            assert torch.equal(found[row], alone[0])
        committed = [*rows.path(rng.randrange(len(rows))), rng.choice([6, 8, rng.randrange(VOCABULARY)])]
        output += committed
        for editor in editors:
            editor.commit(committed)


def test_nothing_asked_is_nothing_done() -> None:
    assert editors_of(NO_CHANGES, [1, 2], [3], ENDS) == ()
    assert editors_of(LogitChanges(min_tokens=3), [1], [4, 5, 6], ENDS) == ()
    assert editors_of(LogitChanges(min_tokens=3), [1], [], ()) == ()


@pytest.mark.parametrize("penalty", [1e-300, 1e-30, 1e30, 1e300])
def test_no_penalty_makes_logits_that_are_no_numbers(penalty: float) -> None:
    logits = torch.tensor([[3.0, -2.0, 0.0, 1.0]])
    found = edited(logits, LogitChanges(repetition_penalty=penalty), [0, 1, 2], [], TreeRows([-1], [-1]))
    assert found.isfinite().all()
    assert found[0, 3] == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_none(value: float) -> None:
    logits = torch.tensor([[3.0, value, 0.0, 1.0]])
    found = edited(
        logits, LogitChanges(repetition_penalty=1.5, presence_penalty=1.0), [0, 1], [1], TreeRows([-1], [-1])
    )
    assert str(found[0, 1].item()) == str(value)


def test_an_end_that_is_no_token_is_passed_over() -> None:
    rows, logits = TreeRows([-1], [-1]), torch.zeros(1, VOCABULARY)
    (editor,) = editors_of(LogitChanges(min_tokens=1), [], [], [3, VOCABULARY + 5])
    editor.prepare(rows)
    editor.edit(logits, rows)
    assert logits.isinf().nonzero().tolist() == [[0, 3]]


def test_many_tokens_are_counted() -> None:
    """The number of tokens exceeds the initial capacity."""
    output = [token % 45 for token in range(400)]
    changes = LogitChanges(frequency_penalty=0.01)
    editors = editors_of(changes, [], [], ENDS)
    for token in output:
        editors[0].commit([token])
    rows, logits = TreeRows([-1], [-1]), torch.zeros(1, VOCABULARY)
    editors[0].prepare(rows)
    editors[0].edit(logits, rows)
    assert torch.equal(logits, edited(torch.zeros(1, VOCABULARY), changes, [], output, rows))
    assert logits[0, 0].item() == pytest.approx(-0.09)
    assert logits[0, 46] == 0


WRONG: list[tuple[str, Callable[[], LogitChanges]]] = [
    (f"sampling.{field}", lambda field=field, value=value: replace(NO_CHANGES, **{field: value}))
    for field, values in {
        "repetition_penalty": [0.0, -1.0, float("nan"), float("inf")],
        "presence_penalty": [2.01, -2.01, float("nan")],
        "frequency_penalty": [2.01, -2.01, float("inf")],
        "logit_bias": [dict.fromkeys(range(1025), 1.0)],
    }.items()
    for value in values
] + [
    ("sampling.logit_bias[5]", lambda value=value: LogitChanges(logit_bias={5: value}))
    for value in (100.5, -101.0, float("nan"))
]


@pytest.mark.parametrize(("field", "made"), WRONG)
def test_numbers_out_of_range_are_named(field: str, made: Callable[[], LogitChanges]) -> None:
    with pytest.raises(FieldError) as caught:
        made().validate()
    assert caught.value.field == field


def test_the_ends_of_the_ranges_are_within() -> None:
    changes = LogitChanges(1e-9, -2.0, 2.0, {0: -100.0, 1: 100.0})
    assert changes.validate() is changes
