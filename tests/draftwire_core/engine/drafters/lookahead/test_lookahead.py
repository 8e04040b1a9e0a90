"""Lookahead with a target that is a function of the last tokens: tokens learned by probes occur again."""

from __future__ import annotations

import pytest

from draftwire_core.engine.drafters.lookahead.lookahead import LookaheadDrafter, LookaheadOptions
from draftwire_core.engine.drafters.probing import NO_PROBES, ProbingDrafter
from draftwire_core.engine.errors import FieldError
from tests.harness.engine.drafter_reader import DrafterReader

PROMPT = [3, 14, 15, 9, 2, 6]


def target(path: list[int]) -> int:
    """Returns the next token, which depends on the last one and slightly on the one before."""
    return (path[-1] * 3 + path[-2] % 5 * 3 + 1) % 29


def follow(reader: DrafterReader, count: int, most_rows: int = 1000) -> int:
    """Commits `count` tokens as a verifier would; returns the number of steps."""
    drafter = reader.drafter
    assert isinstance(drafter, ProbingDrafter)
    end, steps = len(reader.tokens) + count, 0
    while len(reader.tokens) < end:
        root = reader.tree.root
        probes = drafter.probes(reader.key, root, most_rows)
        assert len(probes.nodes) <= most_rows
        told = [target(reader.tokens + [node.token for node in asked.path_from(root)]) for asked in probes.asked]
        tokens = [target(reader.tokens)]
        while len(reader.tree.walk(tokens)) == len(tokens):
            tokens.append(target(reader.tokens + tokens))
        if probes.asked:
            drafter.learn(reader.key, told)
        reader.commit(tokens[: end - len(reader.tokens)])
        steps += 1
    return steps


def reader(tokens: list[int] = PROMPT, max_length: int = 10_000, **options: int) -> DrafterReader:
    made = DrafterReader(LookaheadDrafter(LookaheadOptions(**options)), tokens, max_length=max_length)
    made.grow()
    return made


def test_what_the_probes_tell_is_drafted_and_right() -> None:
    assert follow(reader(), 200) < 120


def test_without_probes_there_are_no_guesses() -> None:
    assert follow(reader(), 50, most_rows=0) == 50


def test_with_few_rows_it_has_few_columns() -> None:
    drafts = reader(ngram=4)
    drafter = drafts.drafter
    assert isinstance(drafter, LookaheadDrafter)
    for most, columns in ((2, 0), (3, 1), (8, 2), (1000, 15), (7, 2)):
        assert len(drafter.probes(1, drafts.tree.root, most).asked) == columns


def test_no_probe_reaches_beyond_the_end() -> None:
    drafts = reader(max_length=len(PROMPT) + 8, ngram=4)
    drafter = drafts.drafter
    assert isinstance(drafter, LookaheadDrafter)
    while len(drafts.tokens) < len(PROMPT) + 8:
        probes = drafter.probes(1, drafts.tree.root, 1000)
        # A probe at the last but one position learns the last token.
        assert all(node.position + 1 <= len(PROMPT) + 7 for node in probes.nodes)
        assert bool(probes.nodes) == (len(drafts.tokens) <= len(PROMPT) + 4)
        drafts.commit([1])


def test_a_prompt_that_is_not_read_yet() -> None:
    drafter = LookaheadDrafter(LookaheadOptions())
    drafts = DrafterReader(drafter, PROMPT)
    assert drafter.probes(1, drafts.tree.root, 1000) is NO_PROBES


@pytest.mark.parametrize(
    ("name", "value"), [("window", 0), ("window", 65), ("ngram", 1), ("ngram", 17), ("guesses", 0), ("guesses", 65)]
)
def test_options_out_of_range(name: str, value: int) -> None:
    with pytest.raises(FieldError, match=f"{name}: must be from"):
        LookaheadOptions(**{name: value})
