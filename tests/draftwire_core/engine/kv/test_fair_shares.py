"""The division of a drafter's rows and slots among verifiers."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.kv.fair_shares import FairRows, ServedVerifier, max_min, shares

WEIGHTS = st.floats(min_value=0.05, max_value=20.0)
VERIFIERS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), min_size=1, max_size=6, unique=True
).flatmap(
    lambda pairs: st.fixed_dictionaries({name: WEIGHTS for name, _ in pairs}).map(
        lambda weights: [ServedVerifier(name, weights[name], stream) for name, stream in pairs]
    )
)
A, B, C = (ServedVerifier(name, 1.0, number) for number, name in enumerate("abc"))
TINY = 1e-6


def by_name(granted: Mapping[ServedVerifier, float]) -> dict[str, float]:
    """Sums the grants of each name's streams."""
    total: dict[str, float] = {}
    for each, amount in granted.items():
        total[each.name] = total.get(each.name, 0) + amount
    return total


def share_of(verifiers: list[ServedVerifier]) -> dict[str, float]:
    """Returns each name's share if all of them want something."""
    weights = {each.name: each.weight for each in verifiers}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


class TestShares:
    def test_streams_of_a_name_divide_its_share(self) -> None:
        heavy = B._replace(weight=3.0)
        assert shares([A, heavy]) == {A: 0.25, heavy: 0.75}
        assert shares([A, heavy, heavy._replace(stream=9)])[heavy] == 0.375
        assert shares([]) == {}

    @given(VERIFIERS)
    def test_they_are_the_whole(self, verifiers: list[ServedVerifier]) -> None:
        assert sum(shares(verifiers).values()) == pytest.approx(1.0)


class TestMaxMin:
    def test_what_one_leaves_the_others_divide(self) -> None:
        assert max_min({A: 10, B: 100, C: 100}, 90) == pytest.approx({A: 10, B: 40, C: 40})
        assert max_min({A: 10, B: 100, C: 45}, 110) == pytest.approx({A: 10, B: 55, C: 45})
        assert max_min({A: 10, B: 20}, 90) == {A: 10, B: 20}
        assert max_min({}, 90) == {}

    def test_by_weight(self) -> None:
        heavy = B._replace(weight=3.0)
        assert max_min({A: 100, heavy: 100}, 100) == pytest.approx({A: 25, heavy: 75})

    def test_streams_of_a_name_divide_its_part(self) -> None:
        second, third = A._replace(stream=7), A._replace(stream=8)
        granted = max_min({A: 100, second: 100, third: 5, B: 100}, 100)
        assert granted == pytest.approx({A: 22.5, second: 22.5, third: 5, B: 50})

    @given(VERIFIERS, st.data())
    def test_its_definition(self, verifiers: list[ServedVerifier], data: st.DataObject) -> None:
        wanted = {each: data.draw(st.integers(0, 1000)) for each in verifiers}
        whole = data.draw(st.integers(1, 2000))
        granted = max_min(wanted, whole)
        assert granted.keys() == wanted.keys()
        assert sum(granted.values()) == pytest.approx(min(whole, sum(wanted.values()))), "nothing is unused"
        share, had, want = share_of(verifiers), by_name(granted), by_name(wanted)
        for name in share:
            assert had[name] <= want[name] + TINY
            assert had[name] >= min(want[name], whole * share[name]) - TINY, "its share, if it wants it"
            if had[name] < want[name] - TINY:  # nobody has more by weight than a name that lacks some
                level = had[name] / share[name]
                assert all(had[other] / share[other] <= level + TINY * level for other in share)
        for each in verifiers:
            if granted[each] < wanted[each] - TINY:
                assert all(granted[o] <= granted[each] + TINY for o in verifiers if o.name == each.name)


class TestFairRows:
    def test_rows_alternate(self) -> None:
        rows = FairRows()
        assert [rows.divide({A: 9, B: 9}, 1)[A] for _ in range(6)] == [1, 0, 1, 0, 1, 0]

    def test_weights(self) -> None:
        rows, heavy = FairRows(), B._replace(weight=3.0)
        total: Counter[ServedVerifier] = Counter()
        for _ in range(8):
            total.update(rows.divide({A: 9, heavy: 9}, 1))
        assert total == {A: 2, heavy: 6}

    def test_streams_of_a_name_divide_its_rows(self) -> None:
        rows, total = FairRows(), Counter[ServedVerifier]()
        second = A._replace(stream=7)
        for _ in range(8):
            total.update(rows.divide({A: 9, second: 9, B: 9}, 3))
        assert total == {A: 6, second: 6, B: 12}

    def test_what_one_does_not_want_others_get(self) -> None:
        assert FairRows().divide({A: 2, B: 50, C: 50}, 20) == {A: 2, B: 9, C: 9}
        assert FairRows().divide({A: 2, B: 3}, 20) == {A: 2, B: 3}
        assert FairRows().divide({A: 50}, 20) == {A: 20}
        assert FairRows().divide({A: 0, B: 50}, 20) == {A: 0, B: 20}
        assert FairRows().divide({A: 1, B: 1}, 0) == {A: 0, B: 0}
        assert FairRows().divide({}, 5) == {}

    def test_who_was_idle_has_saved_nothing_up(self) -> None:
        rows = FairRows()
        for _ in range(1000):
            rows.divide({B: 9, C: 9}, 1)
        total: Counter[ServedVerifier] = Counter()
        for _ in range(9):
            total.update(rows.divide({A: 9, B: 9, C: 9}, 1))
        assert total == {A: 3, B: 3, C: 3}

    def test_a_row_now_and_then_is_no_way_to_more(self) -> None:
        """A verifier with a tenth of the weight asks for one row in every other step."""
        rows, light = FairRows(), A._replace(weight=1 / 9)
        total: Counter[ServedVerifier] = Counter()
        for step in range(500):
            total.update(rows.divide({light: 1, B: 9} if step % 2 else {B: 9}, 2))
        assert 50 <= total[light] <= 100, "it gets a tenth of the rows, of those of the steps in which it asks at least"

    @given(VERIFIERS, st.data())
    def test_the_promise(self, verifiers: list[ServedVerifier], data: st.DataObject) -> None:
        """Over the steps in which two names lack rows, both get rows in proportion to weight, within one row each;
        so do the streams of a name, evenly."""
        rows = FairRows()
        weights = {each.name: each.weight for each in verifiers}
        lacking = st.integers(13, 30)  # more than all rows of a step
        some = data.draw(st.lists(st.sampled_from(verifiers), unique=True))
        had: Counter[ServedVerifier] = Counter()
        for _ in range(data.draw(st.integers(1, 12))):
            wanted = {each: data.draw(st.integers(0, 3) if each in some else lacking) for each in verifiers}
            number = data.draw(st.integers(0, 12))
            granted = rows.divide(wanted, number)
            assert granted.keys() == wanted.keys()
            assert sum(granted.values()) == min(number, sum(wanted.values())), "no row is left unused"
            assert all(0 <= granted[each] <= wanted[each] for each in verifiers)
            had.update(granted)
        greedy = [each for each in verifiers if each not in some]
        totals = by_name({each: had[each] for each in verifiers})
        names = {each.name for each in greedy}
        for one in names:
            for other in names:
                apart = abs(totals[one] / weights[one] - totals[other] / weights[other])
                assert apart <= 1 / weights[one] + 1 / weights[other] + TINY
        for each in greedy:
            assert all(abs(had[each] - had[o]) <= 2 for o in greedy if o.name == each.name)

    @given(VERIFIERS, st.data())
    def test_nobody_starves(self, verifiers: list[ServedVerifier], data: st.DataObject) -> None:
        """A verifier that always wants rows gets its share of them, whatever the others ask for."""
        rows, share = FairRows(), share_of(verifiers)
        [one, *others] = verifiers
        had = of_all = 0
        for _ in range(20):
            wanted = {each: data.draw(st.integers(0, 30)) for each in others if each.name != one.name}
            number = data.draw(st.integers(0, 8))
            of_all += number
            had += rows.divide({one: 30} | wanted, number)[one]
            # Each other one may be a row ahead, by its own weight.
            assert had >= share[one.name] * (of_all - len(share)) - 1 - TINY

    def test_what_is_kept_is_bounded(self) -> None:
        """Verifiers come and go endlessly beside two that stay."""
        rows = FairRows()
        for number in range(500):
            gone = ServedVerifier(f"host {number}", 0.05, number)
            rows.divide({A: 5, B: 5, gone: 5, gone._replace(stream=-number - 1): 5}, 4)
            assert len(rows._names.ahead) <= 40 and len(rows._streams) <= 1
            assert all(0 < lead <= 20 for lead in rows._names.ahead.values())
