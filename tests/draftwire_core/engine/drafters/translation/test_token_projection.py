"""Probabilities of the target's tokens, from a draft model's probabilities of other tokens."""

from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.token_projection import TokenProjection
from draftwire_core.engine.text.vocabulary import Vocabulary
from tests.harness.engine.known_text import KnownTextDrafting
from tests.harness.engine.translation import token_map

TRANSLATION = token_map("target", "draft")
LONGER = {token: pieces for token, pieces in enumerate(TRANSLATION.pieces) if len(pieces) > 1}
PAIRED = {token: pieces for token, pieces in LONGER.items() if len(pieces) == 2}


@pytest.fixture
def projection() -> TokenProjection:
    return TokenProjection(TRANSLATION, torch.device("cpu"))


def one_hot(token: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token), len(TRANSLATION.draft)).float()


def probabilities() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.softmax(torch.randn(3, len(TRANSLATION.draft)) * 3, dim=1)


def refined(
    projection: TokenProjection, row: torch.Tensor, spelling: Sequence[int], after: Sequence[torch.Tensor]
) -> torch.Tensor:
    rest = projection.without(projection.project(row.unsqueeze(0))[0], row, spelling[0])
    return projection.refine(rest, row, spelling, after)


def test_no_probability_is_lost(projection: TokenProjection) -> None:
    projected = projection.project(probabilities())
    assert projected.shape == (3, len(TRANSLATION.target))
    assert bool((projected >= 0).all())
    torch.testing.assert_close(projected.sum(1), torch.ones(3))


def test_a_token_that_begins_no_other_goes_to_its_counterpart(projection: TokenProjection) -> None:
    begun = {pieces[0] for pieces in LONGER.values()}
    alone = [(d, covers[0]) for d, covers in enumerate(TRANSLATION.covers) if len(covers) == 1 and d not in begun]
    assert len(alone) > 50
    for draft, target in alone:
        assert float(projection.project(one_hot(draft).unsqueeze(0))[0, target]) == pytest.approx(1)


def test_what_has_been_committed_decides_what_a_beginning_leads_to(projection: TokenProjection) -> None:
    token, pieces = next(iter(PAIRED.items()))
    before = float(projection.project(one_hot(pieces[0]).unsqueeze(0))[0, token])
    projection.observe([token] * 50)
    after = float(projection.project(one_hot(pieces[0]).unsqueeze(0))[0, token])
    assert before < 0.5 < 0.9 < after
    assert projection.is_open(pieces[:1])
    single = TRANSLATION.covers[pieces[0]][0]
    projection.observe([single] * 5000)
    assert not projection.is_open(pieces[:1])


def test_a_row_without_a_draft_token_is_that_of_the_others(projection: TokenProjection) -> None:
    row = probabilities()[0]
    for piece in {pieces[0] for pieces in LONGER.values()}:
        others = row.clone()
        others[piece] = 0
        projection.observe(list(LONGER)[:5])  # shares are computed anew
        rest = projection.without(projection.project(row.unsqueeze(0))[0], row, piece)
        torch.testing.assert_close(rest, projection.project(others.unsqueeze(0))[0], rtol=1e-5, atol=1e-7)


def test_what_follows_a_beginning_settles_it(projection: TokenProjection) -> None:
    for token, (first, second) in PAIRED.items():
        alike = [other for other, pieces in LONGER.items() if pieces[:2] == (first, second)]
        found = refined(projection, one_hot(first), (first,), [one_hot(second)])
        torch.testing.assert_close(found[alike].sum(), torch.tensor(1.0))
        if alike == [token]:
            assert int(found.argmax()) == token
        ended = refined(projection, one_hot(first), (first,), [one_hot(0)])
        assert int(ended.argmax()) == TRANSLATION.covers[first][0]
        torch.testing.assert_close(ended.sum(), torch.tensor(1.0))


def merging(*pair: str) -> Vocabulary:
    """A vocabulary of single bytes and one token of two."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({name: index for index, name in enumerate([*names, "".join(pair)])}, [pair]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return Vocabulary(made, {})


def test_a_longer_draft_token_that_begins_with_the_last_one_settles_it_as_well() -> None:
    """A line break is the beginning of one with an indentation, at which the target's tokenizer splits."""
    line, indented = "\u010a", "\u010a\u0120"
    translation = TokenMap(merging("x", line), merging(line, indented[1]))
    ends, indentation = translation.target.by_spelling[b"x\n"], translation.draft.by_spelling[b"\n "]
    pieces = translation.pieces[ends]
    assert len(pieces) == 2 and len(translation.covers[indentation]) == 2
    after = torch.nn.functional.one_hot(torch.tensor([pieces[0], indentation]), len(translation.draft)).float()
    projection = TokenProjection(translation, torch.device("cpu"))
    assert projection.unsettled(after[0], pieces[:1], [after[1]]) in (pieces, None)
    found = refined(projection, after[0], pieces[:1], [after[1]])
    assert float(found[ends]) == pytest.approx(1) == float(found.sum())
    known = KnownTextDrafting(translation, translation.target.encode(b"ax\n bx\n cx\n dx\n ex\n f"), prompt=1)
    assert not known.wrong


def test_a_token_that_has_ended_is_not_continued(projection: TokenProjection) -> None:
    _, (first, second) = next(iter(PAIRED.items()))
    row = 0.7 * one_hot(second) + 0.3 * one_hot(0)
    kept = projection.without_longer(row, (first,))
    assert float(kept[second]) < 0.1
    assert float(kept.sum()) == pytest.approx(1)
    sure = projection.without_longer(one_hot(second), (first,))
    assert float(sure[second]) == pytest.approx(1)  # tokenizers that split words first leave some tokens apart


def test_the_longer_draft_token_is_followed_where_it_is_likelier(projection: TokenProjection) -> None:
    longer = next(draft for draft, covers in enumerate(TRANSLATION.covers) if len(covers) > 1)
    head = TRANSLATION.covers[longer][0]
    assert projection.compound(one_hot(longer), head) == (longer, 1.0)
    (counterpart,) = TRANSLATION.pieces[head]
    assert projection.compound(0.6 * one_hot(counterpart) + 0.4 * one_hot(longer), head) is None


def test_all_that_follows_settles_a_token_of_many_pieces(projection: TokenProjection) -> None:
    """Of the tokens that begin with the same two draft tokens, the draft model knows which is meant."""
    long = {token: pieces for token, pieces in LONGER.items() if len(pieces) > 2}
    assert len(long) > 5
    for pieces in long.values():
        after = [one_hot(piece) for piece in pieces[1:]]
        found = refined(projection, one_hot(pieces[0]), pieces[:-1], after)
        alike = [other for other, spelled in LONGER.items() if spelled[: len(pieces)] == pieces]
        torch.testing.assert_close(found[alike].sum(), torch.tensor(1.0))
        assert int(found.argmax()) in alike
        assert projection.is_open(pieces[:1]) and projection.is_open(pieces[:-1])


def test_a_model_that_another_thread_loads_changes_nothing(projection: TokenProjection) -> None:
    """Loading one makes its type the default type of floats, for the whole process."""
    given, tokens = probabilities(), [*LONGER, *LONGER]
    projection.observe(tokens)
    expected = projection.project(given)
    torch.set_default_dtype(torch.bfloat16)
    try:
        again = TokenProjection(TRANSLATION, torch.device("cpu"))
        again.observe(tokens)
        found = again.project(given)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
