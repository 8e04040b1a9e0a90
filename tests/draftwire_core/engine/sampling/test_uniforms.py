"""Random numbers of a request other than its noise."""

import numpy as np
import pytest
import torch
from scipy import stats

from draftwire_core.engine.sampling.philox import (
    DOMAIN_ACCEPTANCE,
    MASK,
    acceptance_uniform,
    philox4x32,
    philox4x32_once,
    uniforms,
    verifier_key,
)


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5, 2**64 - 1])
def test_one_at_a_time_or_many(seed: int) -> None:
    bits = torch.tensor(seed - (1 << 64) if seed >= 1 << 63 else seed)
    many = uniforms(bits, torch.tensor(11), torch.arange(20), DOMAIN_ACCEPTANCE)
    assert many.tolist() == [acceptance_uniform(seed, 11, turn) for turn in range(20)]


def test_philox_of_one_counter() -> None:
    counter, key = (1, 2, MASK, 4), (MASK, 6)
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))  # type: ignore[arg-type]
    assert philox4x32_once(counter, key) == tuple(map(int, words))


def test_uniform_and_independent_of_each_other() -> None:
    seeds, turns = torch.arange(5000).unsqueeze(1), torch.arange(2)
    first, second = uniforms(seeds, torch.tensor(3), turns, DOMAIN_ACCEPTANCE).T.numpy()
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    cells, _, _ = np.histogram2d(first, second, bins=8, range=[[0, 1], [0, 1]])
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3


def test_the_verifiers_key_is_no_drafters_seed() -> None:
    seeds = (0, 1, 2**63, 2**64 - 1)
    keys = {verifier_key(seed) for seed in seeds}
    assert len(keys) == len(seeds)
    assert not keys & set(seeds)
    assert all(0 <= key < 2**64 for key in keys)
