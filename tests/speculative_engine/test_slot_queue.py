"""Who runs, who waits, who gives way."""

import numpy as np
import pytest

from speculative_engine.kv_slots import SlotList, SlotPool
from speculative_engine.slot_queue import SlotQueue


class Holder:
    """A sequence of so many tokens that computes what it is told to."""

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
    queue.add("b", Holder(38))  # 32 of 70 stay
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
    assert names(queue) == ("a", "bcd") and queue.preemptions == 2  # the oldest stays whatever is asked
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
