"""The Jacobi window: a separate tree below the last token that moves along with the committed tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.lookahead.jacobi_window import JacobiWindow
from draftwire_core.engine.drafters.probing import Probes
from draftwire_core.engine.tree.token_tree import Node, TokenTree

TEXT = list(range(100, 130))


def columns_of(probes: Probes, root: Node, levels: int) -> list[list[int]]:
    """Returns the columns, read from the tree that they are laid out as."""
    return [[node.token for node in node_path(asked, root)[-levels:]] for asked in probes.asked]


def node_path(node: Node, root: Node) -> list[Node]:
    path = node.path_from(root)
    assert [each.position for each in path] == list(range(root.position + 1, node.position + 1))
    return path


def root_of(text: list[int]) -> Node:
    return TokenTree(len(text), text[-1]).root


def test_the_columns_are_a_tree_that_the_root_does_not_know() -> None:
    root = root_of(TEXT)
    probes = JacobiWindow(3).probes(root, TEXT, 4)
    assert len(probes.nodes) == 12
    assert not root.children
    assert not any(node.children for node in probes.nodes)
    assert [asked.position - root.position for asked in probes.asked] == [3, 4, 5, 6]
    columns = columns_of(probes, root, 3)
    last = node_path(probes.asked[-1], root)
    assert [node.token for node in last[:4]] == [column[0] for column in columns], "a line of the first tokens"
    seen: set[int] = {id(root)}
    for node in probes.nodes:
        assert id(node.parent) in seen, "parents first"
        seen.add(id(node))


def test_a_new_column_is_a_piece_of_the_text() -> None:
    root = root_of(TEXT)
    columns = columns_of(JacobiWindow(3).probes(root, TEXT, 20), root, 3)
    assert all(column == list(range(column[0], column[0] + 3)) for column in columns)
    assert len({column[0] for column in columns}) > 5


def test_a_text_shorter_than_a_column() -> None:
    root = root_of([7, 8])
    assert columns_of(JacobiWindow(4).probes(root, [7, 8], 1), root, 4) == [[7, 8, 8, 8]]


def test_a_pass_gives_ngrams_and_moves_the_columns_on() -> None:
    window, root = JacobiWindow(2), root_of(TEXT)
    before = columns_of(window.probes(root, TEXT, 3), root, 2)
    assert window.learn(TEXT, [1, 2, 3]) == [[*column, told] for column, told in zip(before, [1, 2, 3], strict=True)]
    root = root_of([*TEXT, 50])
    after = columns_of(window.probes(root, TEXT, 3), root, 2)
    assert after == [[column[1], told] for column, told in zip(before, [1, 2, 3], strict=True)]


def test_several_tokens_at_once_move_it_as_far() -> None:
    window, root = JacobiWindow(2), root_of(TEXT)
    window.probes(root, TEXT, 4)
    told = [column[-2:] for column in window.learn(TEXT, [1, 2, 3, 4])]
    root = root_of([*TEXT, 50, 51, 52])
    columns = columns_of(window.probes(root, TEXT, 4), root, 2)
    assert columns[:2] == told[2:], "two places were passed"
    assert all(column[1] == column[0] + 1 for column in columns[2:]), "in their place are new ones"


def test_all_were_passed() -> None:
    window, root = JacobiWindow(2), root_of(TEXT)
    window.probes(root, TEXT, 3)
    window.learn(TEXT, [1, 2, 3])
    root = root_of([*TEXT, *[9] * 50])
    assert all(column[0] >= 100 for column in columns_of(window.probes(root, TEXT, 3), root, 2))


def test_a_column_of_which_nothing_was_told_begins_anew() -> None:
    window, root = JacobiWindow(2), root_of(TEXT)
    (_, before) = columns_of(window.probes(root, TEXT, 2), root, 2)
    assert window.learn(TEXT, [-1, 5]) == [[*before, 5]]
    root = root_of([*TEXT, 50])
    (first, second) = columns_of(window.probes(root, TEXT, 2), root, 2)
    assert first[1] == first[0] + 1
    assert second == [before[1], 5]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.booleans()), min_size=1, max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_a_trajectory_stays_at_its_place(levels: int, steps: list[tuple[int, int, bool]]) -> None:
    """Each learned token is its own position, so a column must keep each token there, wherever the window moves."""
    window, text = JacobiWindow(levels), [0, 0, 0]
    for count, committed, told in steps:
        root = root_of(text)
        probes = window.probes(root, [0, 0, 0], count)
        assert len(probes.asked) == count
        assert len(probes.nodes) == count * levels
        for node in probes.nodes:
            assert node.token in (0, node.position)
        if told:
            window.learn([0], [asked.position + 1 for asked in probes.asked])
        text += [0] * committed
