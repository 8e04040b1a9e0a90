"""Philox against the published vectors, and against an independent second implementation."""

import random

import pytest
import torch

from draftwire_core.engine.sampling.philox import philox4x32
from tests.harness.engine.scalar_noise import scalar_philox

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def words(values: list[int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.int64) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert scalar_philox(counter, key) == expected
    assert [int(word) for word in philox4x32(words(counter), words(key))] == expected


def test_random_counters_and_keys_against_the_scalar_one() -> None:
    source = random.Random(5)
    rows = [[source.getrandbits(32) for _ in range(6)] for _ in range(500)]
    columns = torch.tensor(rows, dtype=torch.int64).unbind(1)
    result = torch.stack(philox4x32(columns[:4], columns[4:]), dim=1)
    assert result.tolist() == [scalar_philox(row[:4], row[4:]) for row in rows]


def test_counters_and_keys_broadcast() -> None:
    index, position, key = torch.arange(7), torch.arange(3)[:, None], torch.tensor([[9], [8], [7]])
    zero = torch.zeros((), dtype=torch.int64)
    result = torch.stack(philox4x32((index, position, zero, zero), (key, key + 1)), dim=-1)
    assert result.shape == (3, 7, 4)
    assert result[2, 5].tolist() == scalar_philox([5, 2, 0, 0], [7, 8])
