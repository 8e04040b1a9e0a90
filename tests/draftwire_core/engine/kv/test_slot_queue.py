"""The queue for KV slots: which sequences run, wait, or are preempted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.kv.fair_shares import ServedVerifier, max_min
from draftwire_core.engine.kv.kv_slots import SlotList, SlotPool
from draftwire_core.engine.kv.slot_queue import SlotQueue, SlotUse


class Holder:
    """A sequence of a given length that computes tokens when told to."""

    def __init__(self, length: int):
        self.length = length
        self.slots = SlotList()

    @property
    def pending(self) -> int:
        return self.length - len(self.slots)

    def give_up(self) -> np.ndarray:
        return self.slots.clear()

    def compute(self, pool: SlotPool, count: int) -> None:
        self.slots.extend(pool.take(count))


@pytest.fixture
def pool() -> SlotPool:
    return SlotPool(100)


@pytest.fixture
def queue(pool: SlotPool) -> SlotQueue[str, Holder]:
    return SlotQueue(pool, tree_room=8)


def names(queue: SlotQueue[str, Holder]) -> tuple[str, str]:
    return "".join(queue.running), "".join(queue.waiting)


def test_all_tokens_have_to_fit_with_room_to_grow_for_each(queue: SlotQueue[str, Holder]) -> None:
    queue.add("a", Holder(30))
    queue.add("b", Holder(38))  # 32 of 70 are left
    assert names(queue) == ("ab", "")
    queue.remove("b")
    queue.add("c", Holder(39))
    assert names(queue) == ("a", "c")
    queue.remove("a")
    assert names(queue) == ("c", "")


def test_what_the_running_ones_have_yet_to_compute_is_theirs(queue: SlotQueue[str, Holder], pool: SlotPool) -> None:
    queue.add("a", Holder(60))
    queue.add("b", Holder(9))
    assert names(queue) == ("a", "b")
    queue.running["a"].compute(pool, 60)
    queue.admit()
    assert names(queue) == ("a", "b")


def test_whoever_is_alone_runs(queue: SlotQueue[str, Holder]) -> None:
    queue.add("a", Holder(100))
    assert names(queue) == ("a", "")


def test_nobody_overtakes(queue: SlotQueue[str, Holder]) -> None:
    for name, length in [("a", 50), ("b", 50), ("c", 1)]:
        queue.add(name, Holder(length))
    assert names(queue) == ("a", "bc")
    queue.remove("b")  # the one in front leaves
    assert names(queue) == ("ac", "")


def test_a_limit_on_those_that_run(pool: SlotPool) -> None:
    queue: SlotQueue[str, Holder] = SlotQueue(pool, tree_room=1, most_running=2)
    for name in "abc":
        queue.add(name, Holder(1))
    assert names(queue) == ("ab", "c")
    queue.remove("a")
    assert names(queue) == ("bc", "")


def test_the_youngest_give_way_and_keep_their_place(queue: SlotQueue[str, Holder], pool: SlotPool) -> None:
    for name in "abc":
        queue.add(name, Holder(10))
        queue.running[name].compute(pool, 10)
    queue.add("d", Holder(90))
    assert names(queue) == ("abc", "d")
    queue.make_room(lambda: 70)
    assert names(queue) == ("abc", "d") and queue.preemptions == 0
    queue.make_room(lambda: 30 * len(queue.running))
    assert names(queue) == ("ab", "cd") and queue.preemptions == 1
    queue.make_room(lambda: 99)
    assert names(queue) == ("a", "bcd") and queue.preemptions == 2  # the oldest stays, however much is required
    assert pool.used == 10
    assert queue.waiting["b"].pending == 10
    queue.admit()
    assert names(queue) == ("abc", "d")


def test_one_that_holds_nothing_yet_is_sent_back_uncounted(queue: SlotQueue[str, Holder], pool: SlotPool) -> None:
    for name in "ab":
        queue.add(name, Holder(10))
    queue.running["a"].compute(pool, 10)
    queue.make_room(lambda: 100)
    assert names(queue) == ("a", "b") and queue.preemptions == 0


def test_who_leaves_gives_all_back(queue: SlotQueue[str, Holder], pool: SlotPool) -> None:
    for name in "ab":
        queue.add(name, Holder(30))
        queue.running[name].compute(pool, 20)
    queue.make_room(lambda: 80)
    assert names(queue) == ("a", "b") and len(queue) == 2
    assert queue.find("a") and queue.find("b") and queue.find("c") is None
    assert [holder.length for holder in queue] == [30, 30]
    for name in "bbac":
        queue.remove(name)
    assert pool.used == 0 and len(queue) == 0


class Owned(Holder):
    """A sequence with an owner."""

    def __init__(self, owner: ServedVerifier, length: int):
        super().__init__(length)
        self.owner = owner


A, B, C = (ServedVerifier(name, 1.0, number) for number, name in enumerate("ABC"))


class TestOwners:
    """Room for a tree is 16 slots, so a sequence of 4 tokens counts as 20."""

    @pytest.fixture
    def queue(self, pool: SlotPool) -> SlotQueue[str, Owned]:
        return SlotQueue(pool, tree_room=16, owner=lambda holder: holder.owner)

    def add(self, queue: SlotQueue[str, Owned], pool: SlotPool, owner: ServedVerifier, name: str, length: int) -> None:
        """Adds a sequence, and computes the running ones."""
        queue.add(name, Owned(owner, length))
        for holder in queue.running.values():
            holder.compute(pool, holder.pending)

    def test_one_may_have_all_while_nobody_else_wants_any(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        for name in "vwxyz":
            self.add(queue, pool, B, name, 4)
        assert names(queue) == ("vwxyz", "") and queue.preemptions == 0

    def test_what_was_borrowed_is_given_back(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        for name in "uvwxyz":
            self.add(queue, pool, B, name, 14)
        assert names(queue) == ("uvw", "xyz")
        self.add(queue, pool, A, "a", 14)
        assert names(queue) == ("uva", "wxyz"), "the youngest gives way, and is the first to come back"
        assert queue.take_preempted() == {B: 1} and not queue.take_preempted()
        self.add(queue, pool, A, "b", 14)
        assert names(queue) == ("uva", "wxyzb"), "two of 30 are more than half of 100: there is no part to take back"
        queue.remove("u")
        assert names(queue) == ("vaw", "xyzb"), "both have as much: whoever came first"
        queue.remove("a")
        assert names(queue) == ("vwb", "xyz"), "whoever has less comes first"
        queue.remove("b")
        assert names(queue) == ("vwx", "yz")

    def test_weights(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        heavy = A._replace(weight=4.0)
        for name in "vwxyz":
            self.add(queue, pool, B, name, 4)
        for name in "abcde":
            self.add(queue, pool, heavy, name, 4)
        assert names(queue) == ("vabcd", "wxyze")

    def test_an_owners_only_sequence_may_be_larger_than_its_part(
        self, queue: SlotQueue[str, Owned], pool: SlotPool
    ) -> None:
        for name in "vwxyz":
            self.add(queue, pool, B, name, 4)
        self.add(queue, pool, A, "a", 44)
        assert names(queue) == ("vwa", "xyz"), "which takes what was lent, and no more"
        self.add(queue, pool, C, "c", 30)
        assert names(queue) == ("vwa", "xyzc"), "the last one of each stays, and the third does not fit beside two"
        queue.remove("a")
        assert names(queue) == ("vwc", "xyz"), "it comes first then"

    def test_streams_of_one_name_are_one(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        for number, name in enumerate("vwxyz"):
            self.add(queue, pool, B._replace(stream=number), name, 4)
        for name in "abc":
            self.add(queue, pool, A, name, 4)
        assert len([name for name in queue.running if name in "ab"]) == 2

    def test_growth_takes_from_whoever_has_most(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        for name in "xyz":
            self.add(queue, pool, B, name, 4)
        self.add(queue, pool, A, "a", 4)
        queue.running["x"].length += 60
        queue.running["x"].compute(pool, 60)
        queue.make_room(lambda: 26)
        assert names(queue) == ("xya", "z"), "though another one is younger"

    def test_what_is_told_of_each(self, queue: SlotQueue[str, Owned], pool: SlotPool) -> None:
        for name in "uvwxyz":
            self.add(queue, pool, B, name, 14)
        queue.add("a", Owned(A, 4))
        assert queue.use() == {A: SlotUse(1, 0, 0), B: SlotUse(2, 4, 28)}

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 84)), max_size=40))
    def test_whatever_happens(self, happenings: list[tuple[int, int, int]]) -> None:
        """An owner that asks for no more than its share has it, unless a single sequence of another owner exceeds that
        owner's share; and the queue is stable."""
        pool = SlotPool(100)
        queue: SlotQueue[int, Owned] = SlotQueue(pool, tree_room=16, owner=lambda holder: holder.owner)
        owners = [A, B._replace(weight=3.0), C, C._replace(stream=9)]
        for what, which, length in happenings:
            queue.remove(which)
            if which % 4:
                queue.add(which, Owned(owners[what], length))
            queue.make_room(lambda: len(queue.running))
            for holder in queue.running.values():
                holder.compute(pool, min(holder.pending, pool.free))
            queue.admit()
            state = list(queue.running), list(queue.waiting)
            queue.admit()
            assert (list(queue.running), list(queue.waiting)) == state, "it is at rest"
            assert queue.running or not queue.waiting
            assert pool.used == sum(len(holder.slots) for holder in queue)
            sizes: dict[ServedVerifier, list[int]] = {}
            for holder in queue:
                sizes.setdefault(holder.owner, []).append(holder.length + 16)
            parts = max_min({owner: sum(each) for owner, each in sizes.items()}, 100)
            if all(max(each) <= parts[owner] for owner, each in sizes.items()):
                waiting = {holder.owner for holder in queue.waiting.values()}
                assert all(sum(sizes[owner]) > parts[owner] for owner in waiting)
