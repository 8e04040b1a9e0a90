"""A bound on the longest walk through a graph that enters each node at most once."""

from __future__ import annotations

from collections.abc import Sequence


def longest_path(successors: Sequence[Sequence[int]], weights: Sequence[int]) -> int:
    """Returns the largest sum of weights on a path; an upper bound if there are cycles.

    Nodes of a strongly connected component count with the sum of their weights. Takes time linear in nodes and edges,
    and does not recurse (Tarjan's algorithm with an explicit stack).

    Args:
        successors: the successors of each node.
        weights: the weight of each node, not negative.
    """
    count = len(weights)
    order = [0] * count
    """Order in which each node was entered, from 1; 0 if it was not."""
    lowest = [0] * count
    best = [0] * count
    """Longest path from each node's component on, once the component is complete."""
    complete = [False] * count
    open_nodes: list[int] = []
    entered = longest = 0
    for root in range(count):
        if order[root]:
            continue
        entered += 1
        order[root] = lowest[root] = entered
        open_nodes.append(root)
        walk = [(root, iter(successors[root]))]
        while walk:
            node, ahead = walk[-1]
            for following in ahead:
                if not order[following]:
                    entered += 1
                    order[following] = lowest[following] = entered
                    open_nodes.append(following)
                    walk.append((following, iter(successors[following])))
                    break
                if complete[following]:
                    best[node] = max(best[node], best[following])
                else:
                    lowest[node] = min(lowest[node], order[following])
            else:
                walk.pop()
                if lowest[node] == order[node]:
                    at = _index(open_nodes, node)
                    members = open_nodes[at:]
                    del open_nodes[at:]
                    total = sum(weights[each] for each in members) + max(best[each] for each in members)
                    for each in members:
                        best[each] = total
                        complete[each] = True
                    longest = max(longest, total)
                if walk:
                    before = walk[-1][0]
                    if complete[node]:
                        best[before] = max(best[before], best[node])
                    else:
                        lowest[before] = min(lowest[before], lowest[node])
    return longest


def _index(nodes: list[int], node: int) -> int:
    """The index of a node in a list, searched from its end."""
    at = len(nodes) - 1
    while nodes[at] != node:
        at -= 1
    return at
