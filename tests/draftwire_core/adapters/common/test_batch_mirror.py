"""vLLM's requests and their token trees, shared between two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from draftwire_core.adapters.common.adapted_request import AdaptedOrder
from draftwire_core.adapters.common.batch_mirror import BatchMirror
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal, SequenceProposal

LONG = 30.0


class Mirrored:
    """A mirror, with records of its notifications."""

    def __init__(self) -> None:
        self.wakes = 0
        self.faults: list[RefusedProposal] = []
        self.mirror = BatchMirror(
            most=3, max_tree_nodes=8, vocab_size=200, on_news=self._woken, on_fault=self.faults.append
        )
        self.call = 0

    def _woken(self) -> None:
        self.wakes += 1

    def commit(self, **tokens: Sequence[int]) -> None:
        """Simulates one call of `propose` over these requests."""
        self.call += 1
        for name, known in tokens.items():
            self.mirror.commit(self.call, name, np.array(known, dtype=np.int32), lambda name=name: order(name))

    def chains(self, *names: str) -> list[list[int]]:
        """Returns the available chains without waiting."""
        return self.mirror.chains(names, 0, time.perf_counter())

    def propose(
        self, sequence_id: int, committed_length: int, tokens: Sequence[int], first: int = 1, source: str = "a#1"
    ) -> None:
        parents = [0, *range(first, first + len(tokens) - 1)][: len(tokens)]
        proposal = Proposal(committed_length, first, tokens, parents, [-0.01] * len(tokens))
        self.mirror.propose(source, [SequenceProposal(sequence_id, 1, proposal)])


def order(name: str, max_length: int = 1000) -> AdaptedOrder:
    return AdaptedOrder(name, max_length)


@pytest.fixture
def mirrored() -> Mirrored:
    made = Mirrored()
    made.mirror.begin(order("x"), [1, 2, 3])
    made.mirror.fetch()
    made.mirror.attach(1, "a#1")
    return made


def test_a_new_request_is_news_once() -> None:
    made = Mirrored()
    made.mirror.begin(order("x"), [1, 2, 3])
    made.commit(x=[1, 2, 3, 4])
    assert made.wakes == 1
    [news] = made.mirror.fetch().requests.values()
    assert news.begun == order("x")
    assert news.tokens == [1, 2, 3, 4]
    assert not made.mirror.fetch().requests
    made.commit(x=[1, 2, 3, 4, 5])
    assert made.wakes == 2
    [news] = made.mirror.fetch().requests.values()
    assert news.begun is None
    assert news.tokens == [5]


def test_what_was_drafted_is_offered_and_what_is_left_survives(mirrored: Mirrored) -> None:
    mirrored.commit(x=[1, 2, 3])
    mirrored.propose(1, 3, [4, 5, 6, 7, 8])
    assert mirrored.chains("x") == [[4, 5, 6]]
    mirrored.mirror.verify({"x": 3})
    mirrored.commit(x=[1, 2, 3, 4, 5, 6, 7])
    assert mirrored.chains("x") == [[8]]
    [news] = mirrored.mirror.fetch().requests.values()
    assert news.tokens == [4, 5, 6, 7]
    assert news.sources == ["a#1", "a#1", "a#1", None]
    assert news.drafted == {"a#1": 3}


def test_news_have_the_prices_of_the_step_that_they_are_of(mirrored: Mirrored) -> None:
    for rows, seconds in ((1, 0.01), (4, 0.016)):
        mirrored.mirror.cost.observe(rows, seconds)
    mirrored.commit(x=[1, 2, 3])
    mirrored.propose(1, 3, [4, 5, 6])
    assert mirrored.chains("x") == [[4, 5, 6]]
    assert mirrored.mirror.fetch().prices == (0.0, 0.0), "no step has been drafted for yet"
    mirrored.mirror.verify({"x": 3})
    mirrored.commit(x=[1, 2, 3, 4, 5, 6, 7])
    assert mirrored.chains("x") == [[]]
    assert mirrored.mirror.fetch().prices == pytest.approx((0.01, 0.2))
    mirrored.commit(x=[1, 2, 3, 4, 5, 6, 7, 8])
    assert mirrored.mirror.fetch().prices == pytest.approx((0.01, 0.0))


def test_only_what_vllm_verified_counts_as_accepted(mirrored: Mirrored) -> None:
    mirrored.commit(x=[1, 2, 3])
    mirrored.propose(1, 3, [4, 5, 6])
    mirrored.chains("x")
    mirrored.mirror.verify({"x": 1})
    mirrored.commit(x=[1, 2, 3, 4, 5])
    [news] = mirrored.mirror.fetch().requests.values()
    assert news.sources == ["a#1", None]
    assert news.drafted == {"a#1": 1}


def test_a_wrong_draft_leaves_an_empty_tree(mirrored: Mirrored) -> None:
    mirrored.commit(x=[1, 2, 3])
    mirrored.propose(1, 3, [4, 5, 6])
    mirrored.chains("x")
    mirrored.mirror.verify({"x": 3})
    mirrored.commit(x=[1, 2, 3, 9])
    assert mirrored.chains("x") == [[]]
    [news] = mirrored.mirror.fetch().requests.values()
    assert news.sources == [None]
    assert news.drafted == {"a#1": 3}


def test_a_proposal_that_comes_late_is_followed_along_what_was_committed(mirrored: Mirrored) -> None:
    mirrored.commit(x=[1, 2, 3, 4])
    mirrored.propose(1, 3, [4, 5, 6])
    assert mirrored.chains("x") == [[5, 6]]
    mirrored.propose(1, 3, [9, 8], first=4)
    assert mirrored.mirror.take_stale() == {"a#1": 2}
    assert not mirrored.mirror.take_stale()


def test_a_false_proposal_is_a_fault_and_its_drafter_is_heard_no_more(mirrored: Mirrored) -> None:
    mirrored.propose(1, 3, [4], first=7)
    assert [fault.error.field for fault in mirrored.faults] == ["first_node_id"]
    mirrored.propose(1, 3, [4])
    assert mirrored.chains("x") == [[]]
    assert mirrored.mirror.take_stale() == {"a#1": 1}


def test_a_token_beyond_the_vocabulary_never_reaches_vllm(mirrored: Mirrored) -> None:
    mirrored.propose(1, 3, [200])
    assert [fault.error.field for fault in mirrored.faults] == ["token_ids[0]"]
    assert mirrored.chains("x") == [[]]


def test_no_token_is_drafted_that_has_no_place(mirrored: Mirrored) -> None:
    mirrored.mirror.begin(order("y", max_length=6), [1, 2, 3])
    mirrored.mirror.attach(2, "a#1")
    mirrored.propose(2, 3, [4, 5, 6])
    # Positions 3 and 4; the target's own token after them is the sixth and last.
    assert mirrored.chains("y") == [[4, 5]]


@pytest.mark.parametrize(
    "tokens", [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9, 4, 5]], ids=["shorter", "as the prompt", "another"]
)
def test_what_does_not_go_on_begins_anew(mirrored: Mirrored, tokens: list[int]) -> None:
    mirrored.commit(x=[1, 2, 3, 4, 5])
    mirrored.commit()
    mirrored.mirror.fetch()
    mirrored.commit(x=tokens)
    news = mirrored.mirror.fetch().requests
    assert news[1].ended
    assert news[2].begun == order("x")
    assert news[2].tokens == tokens


def test_a_request_that_was_away_and_goes_on_is_the_same(mirrored: Mirrored) -> None:
    mirrored.commit(x=[1, 2, 3, 4])
    for _ in range(3):
        mirrored.commit()
    mirrored.mirror.fetch()
    mirrored.commit(x=[1, 2, 3, 4, 5])
    [news] = mirrored.mirror.fetch().requests.values()
    assert (news.begun, news.tokens, news.ended) == (None, [5], False)


def test_a_name_that_is_used_again_is_another_request(mirrored: Mirrored) -> None:
    mirrored.mirror.begin(order("x"), [5])
    assert set(mirrored.mirror.fetch().requests) == {1, 2}
    assert mirrored.mirror.requests == 1


def test_an_end_is_news_and_a_second_one_is_not(mirrored: Mirrored) -> None:
    mirrored.mirror.end(["x", "never heard of"])
    [news] = mirrored.mirror.fetch().requests.values()
    assert news.ended
    mirrored.mirror.end(["x"])
    assert not mirrored.mirror.fetch().requests


def test_requests_that_take_part_in_nothing_expire(mirrored: Mirrored) -> None:
    assert mirrored.mirror.expire(LONG) == 0
    assert mirrored.mirror.expire(0.0) == 1
    assert mirrored.mirror.requests == 0
    mirrored.commit(x=[1, 2, 3, 4])  # it was alive after all
    assert mirrored.mirror.fetch().requests[2].tokens == [1, 2, 3, 4]


def test_a_drafter_that_is_gone_is_not_waited_for(mirrored: Mirrored) -> None:
    """The drafter's clock predicted a proposal before it was gone."""
    mirrored.mirror.cost.observe(1, 1000.0)  # so expensive that any wait pays
    mirrored.propose(1, 3, [4])
    mirrored.commit(x=[1, 2, 3, 5])
    found: list[list[list[int]]] = []
    waiting = threading.Thread(
        target=lambda: found.append(mirrored.mirror.chains(["x"], 0, time.perf_counter() + LONG))
    )
    waiting.start()
    mirrored.mirror.forget("a#1")
    waiting.join(LONG)
    assert found == [[[]]]


def test_a_proposal_ends_the_wait(mirrored: Mirrored) -> None:
    mirrored.mirror.cost.observe(1, 1000.0)
    mirrored.propose(1, 3, [4])
    mirrored.commit(x=[1, 2, 3, 5])
    found: list[list[list[int]]] = []
    waiting = threading.Thread(
        target=lambda: found.append(mirrored.mirror.chains(["x"], 0, time.perf_counter() + LONG))
    )
    waiting.start()
    mirrored.propose(1, 4, [6, 7, 8], first=2)
    waiting.join(LONG)
    assert found == [[[6, 7, 8]]]


@pytest.mark.parametrize("always_draft", [False, True])
def test_a_paused_drafter_is_waited_for_by_requests_that_always_draft(always_draft: bool) -> None:
    made = Mirrored()
    made.mirror.begin(AdaptedOrder("x", 1000, always_draft=always_draft), [1, 2, 3])
    made.mirror.attach(1, "a#1")
    made.mirror.pause("a#1", paused=True)
    made.mirror.advance("x", 4, [3, 4])
    [clock] = made.mirror._by_id["x"].clocks.values()
    assert (clock.answer_wait(time.perf_counter()) > 0) is always_draft


def test_nobody_waits_beyond_the_deadline(mirrored: Mirrored) -> None:
    mirrored.mirror.cost.observe(1, 1000.0)
    mirrored.propose(1, 3, [4])
    mirrored.commit(x=[1, 2, 3, 5])
    assert mirrored.mirror.chains(["x"], 0, time.perf_counter() + 0.01) == [[]]


def test_a_request_goes_on_by_its_last_tokens(mirrored: Mirrored) -> None:
    mirrored.propose(1, 3, [4, 5, 6])
    assert mirrored.chains("x") == [[4, 5, 6]]
    mirrored.mirror.verify({"x": 3})
    assert mirrored.mirror.advance("x", 5, [1, 2, 3, 4, 5])
    [news] = mirrored.mirror.fetch().requests.values()
    assert (news.tokens, news.sources) == ([4, 5], ["a#1", "a#1"])
    assert mirrored.chains("x") == [[6]]
    assert mirrored.mirror.advance("x", 5, [3, 4, 5])
    assert not mirrored.mirror.fetch().requests


@pytest.mark.parametrize(
    ("name", "length", "tail"),
    [("y", 4, [3, 4]), ("x", 2, [1, 2]), ("x", 4, [9, 4]), ("x", 3, [9]), ("x", 9, [8, 9])],
    ids=["unknown", "shorter", "another before", "another", "too many"],
)
def test_last_tokens_that_say_too_little(mirrored: Mirrored, name: str, length: int, tail: list[int]) -> None:
    assert not mirrored.mirror.advance(name, length, tail)
    assert not mirrored.mirror.fetch().requests


def test_without_counted_calls_all_tokens_are_compared(mirrored: Mirrored) -> None:
    def commit(tokens: list[int]) -> None:
        mirrored.mirror.commit(None, "x", np.array(tokens, dtype=np.int32), lambda: order("x"))

    commit([1, 2, 3, 4])
    assert mirrored.mirror.fetch().requests[1].tokens == [4]
    commit([9, 2, 3, 4, 5])
    assert mirrored.mirror.fetch().requests[2].tokens == [9, 2, 3, 4, 5]


def test_only_requests_that_are_kept_stay(mirrored: Mirrored) -> None:
    mirrored.mirror.begin(order("y"), [5])
    mirrored.mirror.fetch()
    mirrored.mirror.keep({"y": 7})
    news = mirrored.mirror.fetch().requests
    assert list(news) == [1]
    assert news[1].ended
    assert mirrored.mirror.requests == 1


def test_rows_that_are_verified_in_any_case_cost_nothing() -> None:
    """A chain is cut where a row costs more than it brings, and whole where the rows are there anyway."""
    for fixed, expected in ((False, []), (True, [4, 5, 6])):
        made = Mirrored()
        made.mirror = BatchMirror(
            most=3,
            max_tree_nodes=8,
            vocab_size=200,
            fixed_rows=fixed,
            on_news=lambda: None,
            on_fault=made.faults.append,
        )
        made.mirror.cost.observe(1, 0.01)
        made.mirror.cost.observe(4, 10.0)
        made.mirror.begin(order("x"), [1, 2, 3])
        made.mirror.attach(1, "a#1")
        made.propose(1, 3, [4, 5, 6])
        assert made.chains("x") == [expected]


def test_drafters_hear_of_no_token_beyond_a_requests_end() -> None:
    """vLLM verifies draft tokens beyond it, and with asynchronous scheduling computes one step more."""
    made = Mirrored()
    made.mirror.begin(order("x", max_length=5), [1, 2, 3])
    assert made.mirror.advance("x", 6, [3, 4, 5, 6])
    assert made.mirror.advance("x", 10, [7, 8, 9, 10])
    made.mirror.commit(None, "x", np.arange(1, 13, dtype=np.int32), lambda: order("x"))
    made.mirror.commit(None, "y", np.arange(1, 13, dtype=np.int32), lambda: order("y", max_length=4))
    news = made.mirror.fetch().requests
    assert [(each.tokens, each.ended) for each in news.values()] == [([1, 2, 3, 4, 5], False), ([1, 2, 3, 4], False)]
