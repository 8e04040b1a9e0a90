"""Prompt lookup: the longest match first, several matches merged, nothing searched twice."""

import random

import pytest

from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.ngram_index import NgramIndex
from draftwire_core.engine.errors import FieldError
from tests.harness.engine.drafter_reader import DrafterReader


def reader(tokens: list[int], **options: int) -> DrafterReader:
    made = DrafterReader(ngram_drafter(NgramOptions(**options)), tokens)
    made.grow()
    return made


def test_it_goes_on_as_before() -> None:
    assert reader([1, 2, 3, 4, 5, 6, 9, 1, 2]).likeliest()[:4] == [3, 4, 5, 6]


def test_nothing_was_said_before() -> None:
    assert reader(list(range(50))).tree.size == 0
    assert reader([7]).tree.size == 0


def test_the_longest_match_comes_first() -> None:
    drafts = reader([1, 2, 3, 50, 8, 2, 3, 60, 8, 2, 3, 60, 9, 1, 2, 3])
    best, *others = sorted(drafts.tree.root.children.values(), key=lambda node: -node.log_prob)
    assert best.token == 50, "three tokens agree, though two of them were followed by 60 twice and more lately"
    assert [node.token for node in others] == [60]


def test_equal_matches_share_one_tree_by_their_number() -> None:
    drafts = reader([1, 2, 5, 30, 9, 1, 2, 5, 30, 8, 1, 2, 6, 40, 7, 1, 2])
    children = {token: node.log_prob for token, node in drafts.tree.root.children.items()}
    assert set(children) == {5, 6}
    assert children[5] > children[6]
    assert 30 in drafts.tree.root.children[5].children


def test_short_matches_are_none() -> None:
    text = [1, 2, 3, 9, 2, 3]
    assert reader(text, min=2).tree.size > 0
    assert reader(text, min=3).tree.size == 0


def test_a_longer_match_is_believed_more() -> None:
    def first(tokens: list[int]) -> float:
        return next(iter(reader(tokens).tree.root.children.values())).log_prob

    assert first([1, 2, 3, 4, 5, 6, 1, 2, 3, 4]) > first([1, 2, 3, 4, 5, 6, 3, 4])


def test_a_text_that_repeats_itself_has_no_end() -> None:
    drafts = reader([1, 2, 3] * 3)
    while drafts.tree.size < 16:  # until it has learned that its guesses are right
        drafts.commit([1, 2, 3])
    assert drafts.likeliest()[:12] == [1, 2, 3] * 4


def test_copying_takes_few_steps_and_noise_costs_few_nodes() -> None:
    rng = random.Random(0)
    text = [rng.randrange(900) for _ in range(400)]
    copying = reader([*text, 950, *text[:2]])
    assert copying.follow(text[2:]) < 60
    noise = reader(text, min=1)
    for _ in range(200):
        noise.commit([rng.randrange(20)])
    assert noise.tree.size <= 6, "a lookup that is wrong is asked for little"


def test_a_request_about_to_end_gets_no_nodes_beyond() -> None:
    drafts = DrafterReader(ngram_drafter(NgramOptions()), [1, 2, 3, 4, 5, 6, 1, 2], max_length=10)
    drafts.grow()
    assert {node.position for node in drafts.tree.nodes()} == {8}


def test_tokens_that_the_target_lacks_are_not_drafted() -> None:
    drafts = DrafterReader(ngram_drafter(NgramOptions()), [1, 2, 90, 4, 1, 2], vocab_size=50)
    drafts.grow()
    assert drafts.tree.size == 0


@pytest.mark.parametrize("options", [{"min": 0}, {"min": 65, "max": 65}, {"min": 5, "max": 4}, {"max": 65}])
def test_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(FieldError):
        NgramOptions(**options)


class TestIndex:
    def test_as_a_search_finds_them(self) -> None:
        rng = random.Random(1)
        text = [rng.randrange(6) for _ in range(120)]
        index = NgramIndex(2)
        for length, token in enumerate(text, start=1):
            index.extend([token])
            known = text[:length]
            expected = []
            for end in range(length - 1, 1, -1):
                agreeing = 0
                while agreeing < min(4, end) and known[end - agreeing - 1] == known[length - agreeing - 1]:
                    agreeing += 1
                if agreeing >= 2:
                    expected.append((agreeing, end))
            expected.sort(key=lambda each: -each[0])
            found = [(place.length, place.where) for place in index.find(known, 4)]
            assert [each[0] for each in found] == [each[0] for each in expected[: len(found)]]
            assert set(found) <= set(expected)
            assert len(found) == min(len(expected), 4)

    def test_all_at_once_and_one_by_one_are_the_same(self) -> None:
        text = [random.Random(2).randrange(4) for _ in range(300)]
        whole, parts = NgramIndex(3), NgramIndex(3)
        whole.extend(text)
        for token in text:
            parts.extend([token])
        assert [each[::2] for each in whole.find(text, 8)] == [each[::2] for each in parts.find(text, 8)]
