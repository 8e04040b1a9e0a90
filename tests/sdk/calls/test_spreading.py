"""The choice of a verifier for a request: ranking, bounds and keys."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire import SpreadPolicy, Verifier
from draftwire._calls.spreading import choose, ranked
from draftwire._messages.conversation import Conversation
from draftwire._messages.requests import Request, prompt_prefix, token_prefix

KEYS = [f"prompt {number}".encode() for number in range(4000)]


def verifiers(count: int) -> list[Verifier]:
    return [Verifier(f"host-{number}:50051") for number in range(count)]


def first(key: bytes, among: list[Verifier]) -> str:
    return ranked(key, among)[0].address


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_verifier_that_comes_moves_its_share_of_the_keys_and_no_other(count: int) -> None:
    before, after = verifiers(count), verifiers(count + 1)
    new = after[-1].address
    moved = [key for key in KEYS if first(key, before) != first(key, after)]
    assert {first(key, after) for key in moved} == {new}
    share = len(KEYS) / (count + 1)
    assert abs(len(moved) - share) < 5 * math.sqrt(share)


def test_one_that_goes_leaves_its_keys_to_those_next_in_their_ranking() -> None:
    whole = verifiers(5)
    for key in KEYS[:200]:
        ranking = ranked(key, whole)
        assert ranked(key, [each for each in whole if each != ranking[0]]) == ranking[1:]


def test_weights_are_shares_of_the_keys() -> None:
    weighted = [Verifier("a:1", 1.0), Verifier("b:1", 3.0), Verifier("c:1", 0.0)]
    counts = Counter(first(key, weighted) for key in KEYS)
    assert set(counts) == {"a:1", "b:1"}
    assert abs(counts["b:1"] - 3000) < 5 * math.sqrt(3000 / 4)


def test_the_order_they_are_given_in_does_not_matter() -> None:
    for key in KEYS[:100]:
        assert ranked(key, verifiers(6)[::-1]) == ranked(key, verifiers(6))


def test_the_ranking_is_the_same_everywhere() -> None:
    """A ranking that differed by process, release or language would make parallel gateways spread a shared prefix."""
    assert [each.address for each in ranked(b"You are a helpful assistant.", verifiers(4))] == RANKING


RANKING = ["host-2:50051", "host-3:50051", "host-1:50051", "host-0:50051"]


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8),
    st.floats(1.0, 3.0),
    st.lists(st.integers(0, 5), max_size=60),
    st.randoms(use_true_random=False),
)
def test_no_verifier_has_more_than_the_bound(
    weights: list[float], bound: float, keys: list[int], chance: random.Random
) -> None:
    """Requests with few distinct keys come and go in any order."""
    among = [Verifier(f"host-{number}:1", weight) for number, weight in enumerate(weights)]
    loads = {each.address: 0 for each in among}
    running: list[str] = []
    for key in keys:
        chosen = choose(ranked(b"%d" % key, among), loads, bound)
        loads[chosen.address] += 1
        running.append(chosen.address)
        due = bound * len(running) * chosen.weight / sum(weights)
        assert loads[chosen.address] <= math.ceil(due * (1 + 1e-9))
        if chance.random() < 0.3:
            loads[running.pop(chance.randrange(len(running)))] -= 1


def test_a_key_stays_until_its_verifier_is_busier_than_the_bound() -> None:
    among = verifiers(2)
    best, other = ranked(b"key", among)
    loads = {best.address: 9, other.address: 6}
    assert choose([best, other], loads, 1.25) == best  # up to 10 of 16
    loads = {best.address: 10, other.address: 5}
    assert choose([best, other], loads, 1.25) == other
    loads[other.address] = 8  # up to 12 of 19
    assert choose([best, other], loads, 1.25) == best


def test_standbys_wait_until_there_is_no_other() -> None:
    standby, second = Verifier("s:1", 0.0), Verifier("s:2", 0.0)
    working = Verifier("w:1", 0.1)
    assert choose(ranked(b"k", [standby, working]), {"s:1": 0, "w:1": 1000}, 1.0) == working
    assert choose(ranked(b"k", [standby, second]), {"s:1": 1000, "s:2": 0}, 1.0) == standby


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"prefix_bytes": 0}, "prefix_bytes must be at least 1, got 0"),
        ({"load_bound": 0.9}, "load_bound must be a number of at least 1, got 0.9"),
        ({"load_bound": math.nan}, "load_bound must be"),
        ({"load_bound": math.inf}, "load_bound must be"),
    ],
)
def test_policies_are_checked(policy: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SpreadPolicy(**policy)  # type: ignore[arg-type]


SYSTEM = "You answer questions about trains. " * 10


def chat(*messages: tuple[str, str]) -> bytes:
    conversation = Conversation([{"role": role, "content": content} for role, content in messages])
    return prompt_prefix(Request.of(conversation).message, 256)


def test_chats_with_one_long_system_prompt_have_one_key() -> None:
    assert len(SYSTEM) > 256
    assert chat(("system", SYSTEM), ("user", "When?")) == chat(("system", SYSTEM), ("user", "Where?"))
    assert chat(("system", SYSTEM), ("user", "a")) != chat(("system", "Be brief. " + SYSTEM), ("user", "a"))
    assert chat(("user", SYSTEM)) != chat(("system", SYSTEM))


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    begun = (("system", "Be brief."), ("user", "When does the train to " + "x" * 300 + " leave?"))
    assert chat(*begun) == chat(*begun, ("assistant", "At noon."), ("user", "And back?"))


def test_a_text_is_known_by_its_beginning() -> None:
    text = "größer als «naïve» " * 40

    def prefix(prompt: str) -> bytes:
        return prompt_prefix(Request.of(prompt).message, 256)

    assert prefix(text) == text.encode()[:256] == prefix(text + "more")
    assert prefix("short") == b"short"
    assert prefix("") == b""


def test_token_ids_count_four_bytes_each() -> None:
    ids = list(range(70_000, 70_100))
    assert prompt_prefix(Request.of(ids).message, 256) == prompt_prefix(Request.of(ids[:64]).message, 256)
    assert prompt_prefix(Request.of(ids).message, 256) != prompt_prefix(Request.of(ids[:63]).message, 256)
    assert token_prefix([1, 2], 6) == b"\1\0\0\0\2\0"
