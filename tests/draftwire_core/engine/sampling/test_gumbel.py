"""The noise: a pure function of (seed, position, token), iid standard Gumbel however it is evaluated."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from draftwire_core.engine.sampling import gumbel
from draftwire_core.engine.sampling.gumbel import NOISE_BLOCK, block_maxima, gumbel_at
from tests.harness.engine.noise_vectors import VECTORS
from tests.harness.engine.scalar_noise import scalar_gumbel


def noise(positions: int, tokens: int, seed: int = 1234567890123456789) -> Tensor:
    """Returns noise of one seed, [positions, tokens]."""
    rows = torch.arange(positions)
    return gumbel_at(torch.full_like(rows, seed), rows, torch.arange(tokens).expand(positions, tokens))


def test_vectors_of_the_documentation() -> None:
    for seed, position, token, value in VECTORS:
        signed = seed - 2**64 if seed >= 2**63 else seed
        got = gumbel_at(torch.tensor([signed]), torch.tensor([position]), torch.tensor([[token]]))
        assert got.item() == pytest.approx(value, abs=1e-6)


def test_against_the_scalar_definition() -> None:
    source = np.random.default_rng(1)
    seeds = torch.tensor(source.integers(-(2**63), 2**63, size=200))
    positions = torch.tensor(source.integers(0, 2**32, size=200))
    tokens = torch.tensor(source.integers(0, 300_000, size=(200, 3)))
    got = gumbel_at(seeds, positions, tokens)
    expected = [
        [scalar_gumbel(int(s) % 2**64, int(p), int(t)) for t in ts]
        for s, p, ts in zip(seeds, positions, tokens, strict=True)
    ]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32), rtol=2e-7, atol=2e-7)


def test_block_maxima_are_the_maxima_to_the_bit() -> None:
    values = noise(40, 64 * NOISE_BLOCK)
    rows = torch.arange(40)
    maxima = block_maxima(torch.full_like(rows, 1234567890123456789), rows, 64)
    assert torch.equal(values.unflatten(1, (64, NOISE_BLOCK)).amax(2), maxima)


def test_a_value_does_not_depend_on_what_else_is_asked() -> None:
    whole = noise(5, 1000)
    seeds, positions = torch.full((5,), 1234567890123456789), torch.arange(5)
    generator = torch.Generator().manual_seed(3)
    for count in (1, 2, 7, 130):
        ids = torch.randint(0, 1000, (5, count), generator=generator)
        assert torch.equal(gumbel_at(seeds, positions, ids), whole.gather(1, ids))
        row = int(torch.randint(0, 5, (), generator=generator))
        one = gumbel_at(seeds[row : row + 1], positions[row : row + 1], ids[row : row + 1])
        assert torch.equal(one[0], whole[row, ids[row]])
    for blocks in (1, 3, 16):
        assert torch.equal(block_maxima(seeds, positions, blocks), block_maxima(seeds, positions, 100)[:, :blocks])


def test_other_seeds_and_positions_give_other_noise() -> None:
    tokens = torch.arange(500).expand(4, 500)
    values = gumbel_at(torch.tensor([1, 1, 2, 1 + 2**32]), torch.tensor([5, 6, 5, 5]), tokens)
    correlation = np.corrcoef(values.numpy())
    assert np.abs(correlation - np.eye(4)).max() < 0.2  # 4.5 sigma


def assert_standard_gumbel(values: Tensor) -> None:
    """Checks the distribution by a KS test, and correlations within blocks, between neighbours and across positions."""
    assert stats.kstest(values.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    blocks = values.reshape(-1, NOISE_BLOCK).numpy()
    correlation = np.corrcoef(blocks, rowvar=False)[np.triu_indices(NOISE_BLOCK, 1)] * math.sqrt(len(blocks))
    assert stats.kstest(correlation, "norm").pvalue > 1e-3  # 2016 pairs, each about N(0, 1)
    for shift in (1, 64, values.shape[1]):
        flat = values.flatten().numpy()
        assert abs(np.corrcoef(flat[:-shift], flat[shift:])[0, 1]) < 4.5 / math.sqrt(flat.size)
    maxima, winners = blocks.max(1), blocks.argmax(1)
    for which in (maxima < np.median(maxima), maxima >= np.median(maxima)):  # independently of the maximum
        assert stats.chisquare(np.bincount(winners[which], minlength=NOISE_BLOCK)).pvalue > 1e-3
    # A block's maximum is independent of the tokens of other blocks.
    tokens = values.shape[1]
    maxima = maxima.reshape(-1, tokens // NOISE_BLOCK)
    correlation = np.corrcoef(maxima, values.numpy(), rowvar=False)[: tokens // NOISE_BLOCK, tokens // NOISE_BLOCK :]
    other = np.arange(tokens) // NOISE_BLOCK != np.arange(tokens // NOISE_BLOCK)[:, None]
    assert np.abs(correlation[other]).max() * math.sqrt(len(values)) < 5.5


def test_standard_gumbel_and_independent() -> None:
    assert_standard_gumbel(noise(500, 10 * NOISE_BLOCK))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOMAIN_BLOCK_WINNER", gumbel.DOMAIN_BLOCK_FIRST),
        ("DOMAIN_TOKEN", gumbel.DOMAIN_BLOCK_FIRST),
        ("NOISE_BLOCK", 60),
    ],
)
def test_the_statistics_catch_a_planted_fault(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Random words used twice, or a block maximum that is off by log(64 / 60)."""
    if name == "NOISE_BLOCK":
        exact = gumbel.gumbel_of_arrivals
        monkeypatch.setattr(gumbel, "gumbel_of_arrivals", lambda arrivals: exact(arrivals * (64 / 60)))
    else:
        monkeypatch.setattr(gumbel, name, value)
    with pytest.raises(AssertionError):
        assert_standard_gumbel(noise(500, 10 * NOISE_BLOCK))
