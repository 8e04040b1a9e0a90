"""Lists of tokens in two arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.drafters.translation.token_lists import TokenLists

LISTS = st.lists(st.lists(st.integers(0, 300_000), max_size=4).map(tuple), max_size=8)


@given(lists=LISTS)
def test_the_lists_come_back(lists: list[tuple[int, ...]]) -> None:
    made = TokenLists.of(lists)
    assert list(made) == lists == [made[index] for index in range(len(made))]
    assert made[:3] == lists[:3]
    assert made.firsts.tolist() == [each[0] if each else -1 for each in lists]
    assert made.nth(2).tolist() == [each[2] if len(each) > 2 else -1 for each in lists]


@given(lists=LISTS, data=st.data())
def test_some_are_left_out_or_replaced(lists: list[tuple[int, ...]], data: st.DataObject) -> None:
    made = TokenLists.of(lists)
    keep = data.draw(st.lists(st.booleans(), min_size=len(lists), max_size=len(lists)))
    assert list(made.kept(np.array(keep, np.bool_))) == [
        each if kept else () for each, kept in zip(lists, keep, strict=True)
    ]
    indices = data.draw(st.sets(st.integers(0, len(lists) - 1), max_size=4)) if lists else set()
    new = {index: data.draw(st.lists(st.integers(0, 9), max_size=3).map(tuple)) for index in indices}
    assert list(made.replaced(new)) == [new.get(index, each) for index, each in enumerate(lists)]
