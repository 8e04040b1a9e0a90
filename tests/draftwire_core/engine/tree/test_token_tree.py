"""Growing, committing and re-rooting the token tree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.tree.token_tree import Node, NodeState, TokenTree


def grown(tree: TokenTree, shape: dict[int, dict]) -> None:
    """Adds {token: {token: ...}} below the root."""

    def add(parent: Node, below: dict[int, dict]) -> None:
        for token, deeper in below.items():
            add(tree.add(parent, token)[0], deeper)

    add(tree.root, shape)


def shape_of(node: Node) -> dict[int, dict]:
    return {token: shape_of(child) for token, child in node.children.items()}


def test_a_tree_needs_a_committed_token() -> None:
    with pytest.raises(ValueError, match="a committed token"):
        TokenTree(0, 1)


def test_adding_twice_gives_the_same_node() -> None:
    tree = TokenTree(5, 9)
    node, new = tree.add(tree.root, 3, -0.1, "one")
    again, anew = tree.add(tree.root, 3, -0.9, "two")
    assert new and not anew and again is node
    assert (node.position, node.rank, node.source, node.log_prob) == (5, 0, "one", -0.1)
    sibling, _ = tree.add(tree.root, 4)
    assert sibling.rank == 1 and tree.size == 2 and node.state is NodeState.LIVE and node.slot == -1


def test_commit_keeps_the_subtree_below_the_last_token() -> None:
    tree = TokenTree(5, 9)
    grown(tree, {1: {2: {3: {}, 4: {5: {}}}, 6: {}}, 7: {8: {}}})
    doomed = [node for node in tree.nodes() if node.token in {6, 7, 8}]
    walked, pruned = tree.commit([1, 2])
    assert [node.token for node in walked] == [1, 2]
    assert {node.token for node in pruned} == {6, 7, 8} == {node.token for node in doomed}
    assert all(node.state is NodeState.PRUNED for node in doomed)
    assert all(node.state is NodeState.COMMITTED for node in walked)
    assert tree.committed_length == 7 and tree.root.token == 2 and tree.root.parent is None
    assert shape_of(tree.root) == {3: {}, 4: {5: {}}} and tree.size == 3


def test_leaving_the_tree_starts_a_fresh_one() -> None:
    tree = TokenTree(5, 9)
    grown(tree, {1: {2: {}}})
    walked, pruned = tree.commit([1, 3])
    assert [node.token for node in walked] == [1] and [node.token for node in pruned] == [2]
    assert tree.size == 0 and tree.root.token == 3 and tree.committed_length == 7


def test_a_commit_needs_tokens() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        TokenTree(1, 0).commit([])


def test_path_from_a_node_that_is_no_ancestor() -> None:
    tree = TokenTree(1, 0)
    one, _ = tree.add(tree.root, 1)
    two, _ = tree.add(tree.root, 2)
    with pytest.raises(ValueError, match="not below"):
        two.path_from(one)


shapes = st.recursive(st.just({}), lambda deeper: st.dictionaries(st.integers(0, 2), deeper, max_size=3), max_leaves=20)


@given(shapes, st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=4))
@settings(max_examples=100, deadline=None)
def test_commits_agree_with_plain_dictionaries(shape: dict[int, dict], commits: list[list[int]]) -> None:
    tree, length, expected = TokenTree(3, 7), 3, shape
    grown(tree, shape)
    for tokens in commits:
        before = {id(node) for node in tree.nodes()}
        walked, pruned = tree.commit(tokens)
        for token in tokens:
            expected = expected.get(token, {}) if expected is not None else {}
        after = {id(node) for node in tree.nodes()}
        length += len(tokens)
        assert shape_of(tree.root) == expected
        assert tree.committed_length == length
        assert tree.size == len(after)
        assert before == after | {id(node) for node in walked} | {id(node) for node in pruned}
        assert len(before) == len(after) + len(walked) + len(pruned)
        for node in tree.nodes():
            assert node.state is NodeState.LIVE
            path = node.path_from(tree.root)
            assert node.position == tree.root.position + len(path) and path[-1] is node
