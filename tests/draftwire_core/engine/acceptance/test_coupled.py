"""Paths found by pointer doubling, against paths walked node by node."""

import random

import torch

from draftwire_core.engine.acceptance.coupled import walk_on_device
from tests.harness.engine.random_work import random_job, walked


def test_the_same_nodes_as_walking() -> None:
    rng = random.Random(5)
    lengths = set()
    for _ in range(200):
        jobs = [random_job(rng, number) for number in range(rng.randint(1, 4))]
        tokens: list[int] = []
        parents: list[int] = []
        for job in jobs:
            first, rows = len(tokens), job.tree_rows()
            tokens += rows.tokens
            parents += [first + max(0, parent) for parent in rows.parents]
        drawn = [rng.randrange(3) for _ in tokens]
        found = walk_on_device(*(torch.tensor(each) for each in (drawn, tokens, parents))).tolist()
        first = 0
        for job in jobs:
            last = first + 1 + len(job.nodes)
            accepted, committed = job.walk(walked(drawn[first:last]))
            path = [node for node, kept in zip(job.nodes, found[first + 1 : last], strict=True) if kept]
            assert found[first] and path == accepted
            assert committed[-1] == drawn[first + job.row_behind(accepted)]
            lengths.add(len(path))
            first = last
    assert {0, 1, 2, 5} <= lengths
