"""Suffix decoding: every substring of a text is found, with its continuations and their counts; sharing is optional."""

import random
from collections import Counter
from typing import Any

import pytest

from draftwire_core.engine.drafters.lookup.suffix import SharedTexts, SuffixOptions, suffix_drafter
from draftwire_core.engine.drafters.lookup.suffix_automaton import SuffixAutomaton
from draftwire_core.engine.errors import FieldError
from tests.harness.engine.drafter_reader import DrafterReader


def reader(tokens: list[int], **options: int) -> DrafterReader:
    made = DrafterReader(suffix_drafter(SuffixOptions(**options)), tokens)
    made.grow()
    return made


class TestAutomaton:
    @pytest.mark.parametrize("vocabulary", [2, 4, 30])
    @pytest.mark.parametrize("texts", [1, 3])
    def test_it_counts_what_came_after_every_stretch(self, vocabulary: int, texts: int) -> None:
        """Texts grow side by side, as those of requests do."""
        rng = random.Random(vocabulary)
        known: list[list[int]] = [[] for _ in range(texts)]
        ends = [0] * texts
        automaton = SuffixAutomaton()
        for _ in range(60 * texts):
            which, token = rng.randrange(texts), rng.randrange(vocabulary)
            known[which].append(token)
            ends[which] = automaton.extend(ends[which], token)
        assert automaton.tokens == 60 * texts
        assert len(automaton.next) <= 2 * automaton.tokens + 1
        after: dict[tuple[int, ...], Counter[int]] = {}
        for text in known:
            for end in range(len(text)):
                for start in range(max(0, end - 5), end):
                    after.setdefault(tuple(text[start:end]), Counter())[text[end]] += 1
        for stretch, counts in after.items():
            state = 0
            for token in stretch:
                state = automaton.next[state][token]
            assert set(automaton.next[state]) == set(counts)
            shares = {token: share for token, share, _ in automaton.following(state)}
            best = counts.most_common(1)[0][1]
            assert max(shares.values()) == pytest.approx(best / counts.total())

    def test_another_text_is_followed_by_its_longest_known_suffix(self) -> None:
        rng = random.Random(3)
        text, other = ([rng.randrange(3) for _ in range(80)] for _ in range(2))
        automaton, last = SuffixAutomaton(), 0
        state, length = 0, 0
        for index, token in enumerate(other):
            last = automaton.extend(last, text[index])  # extending splits states that the follower may be in
            state, length = automaton.follow(automaton.state_of(state, length), length, token)
            suffix = other[: index + 1]
            known = text[: index + 1]
            assert any(known[i : i + length] == suffix[len(suffix) - length :] for i in range(len(known)))

    def test_one_token_repeated_takes_no_longer(self) -> None:
        automaton, last = SuffixAutomaton(), 0
        for _ in range(5000):
            last = automaton.extend(last, 7)
        assert len(automaton.next) == 5001


def test_the_more_frequent_comes_first() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 4, 7, 1, 2, 4, 6, 1, 2]
    children = {node.token: node.log_prob for node in reader(text).tree.root.children.values()}
    assert set(children) == {3, 4}
    assert children[4] > children[3]


def test_the_longest_suffix_is_believed_first() -> None:
    text = [5, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 4, 7, 5, 1, 2]
    children = {node.token: node.log_prob for node in reader(text).tree.root.children.values()}
    assert children[3] > children[4]


def test_short_suffixes_are_none() -> None:
    text = [1, 2, 3, 9, 2, 3]
    assert reader(text, min=2).tree.size > 0
    assert reader(text, min=3).tree.size == 0


def test_copying_takes_few_steps_and_noise_costs_few_nodes() -> None:
    rng = random.Random(0)
    text = [rng.randrange(900) for _ in range(400)]
    assert reader([*text, 950, *text[:2]]).follow(text[2:]) < 60
    noise = reader(text, min=1)
    for _ in range(200):
        noise.commit([rng.randrange(20)])
    assert noise.tree.size <= 6


class TestShared:
    TEXT = random.Random(1).sample(range(900), 120)

    def test_what_another_request_said_is_drafted(self) -> None:
        drafter = suffix_drafter(SuffixOptions(shared=True))
        first = DrafterReader(drafter, self.TEXT[:3], key=1)
        first.grow()
        alone = first.follow(self.TEXT[3:])
        drafter.close(1)
        second = DrafterReader(drafter, self.TEXT[:3], key=2)
        second.grow()
        assert second.follow(self.TEXT[3:]) < 30 < alone

    def test_by_default_nothing_is(self) -> None:
        drafter = suffix_drafter(SuffixOptions())
        for key in (1, 2):
            drafts = DrafterReader(drafter, self.TEXT[:3], key=key)
            drafts.grow()
            assert drafts.follow(self.TEXT[3:]) == 117

    def test_a_private_text_is_drafted_for_nobody_else(self) -> None:
        drafter = suffix_drafter(SuffixOptions(shared=True))
        steps: list[int] = []
        for private in (True, False, False, True):
            drafts = DrafterReader(drafter, self.TEXT[:3], private=private)
            drafts.grow()
            steps.append(drafts.follow(self.TEXT[3:]))
            drafter.close(1)
        assert steps[:2] == [117, 117]
        assert max(steps[2:]) < 30, "a private request reads what others left"

    def test_a_private_request_repeats_itself_and_reads_both_parts(self) -> None:
        texts = SharedTexts(1000)
        first, second, third = ([100 * number + token for token in range(1, 50)] for number in range(3))
        for text in (first, second):
            texts.lookup(2, private=False).extend([*text, *range(900, 900 + 451)])
        lookup = texts.lookup(2, private=True)
        lookup.extend([*third, *third[:3]])
        for text in (third, second, first):
            lookup.extend(text[:3])
            place = lookup.places()[0]
            assert text[3] in [token for token, _, _ in place.text.following(place.where)]

    def test_only_so_much_is_kept(self) -> None:
        drafter = suffix_drafter(SuffixOptions(shared=True, keep=1000))
        rng = random.Random(2)
        texts = [[rng.randrange(900) for _ in range(200)] for _ in range(12)]
        for key, text in enumerate(texts):
            DrafterReader(drafter, text, key=key).grow()
            drafter.close(key)

        def known(text: list[int]) -> bool:
            drafts = DrafterReader(drafter, text[:10], key="asking")  # type: ignore[arg-type]
            drafts.grow()
            return drafts.likeliest()[:1] == text[10:11]

        assert [known(text) for text in texts[:3]] == [False] * 3
        assert [known(text) for text in texts[-3:]] == [True] * 3

    def test_texts_of_earlier_starts_are_drafted(self) -> None:
        drafter = suffix_drafter(SuffixOptions(shared=True), [self.TEXT])
        for private in (False, True):
            drafts = DrafterReader(drafter, self.TEXT[:3], private=private)
            drafts.grow()
            assert drafts.follow(self.TEXT[3:]) < 30
            drafter.close(1)

    def test_of_earlier_texts_the_first_is_kept_longest(self) -> None:
        options = SuffixOptions(shared=True, keep=1000)
        assert options.tokens_read == 750
        texts = SharedTexts(options.keep)
        texts.begin_with([[100 * number + token for token in range(75)] for number in range(10)])

        def known() -> list[int]:
            lookup = texts.lookup(2, private=True)
            found = []
            for number in range(10):
                lookup.extend([100 * number, 100 * number + 1])
                if lookup.places():
                    found.append(number)
            return found

        assert known() == list(range(10))
        own, _ = texts.join()
        last = 0
        for token in range(2000, 2300):
            last = own.extend(last, token)
        texts.join()
        assert known() == [0, 1, 2], "the first request does not have them forgotten, and later ones the last half"

    def test_a_request_that_runs_keeps_what_it_has_joined(self) -> None:
        texts = SharedTexts(1000)
        own, _ = texts.join()
        last = 0
        for token in range(600):
            last = own.extend(last, token)
        younger, older = texts.join()
        assert older is own
        assert younger is not own


@pytest.mark.parametrize("options", [{"min": 0}, {"min": 65}, {"keep": 999}, {"keep": 10_000_001}, {"texts": "a"}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        SuffixOptions(**options)
