"""The kernels' noise has the bits of the compiled sampler's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.sampling.compiled_sampler import best_tokens
from draftwire_core.engine.sampling.gumbel import NOISE_BLOCK, gumbel_at
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.noise_vectors import VECTORS
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
noise: Any = pytest.importorskip("draftwire_core.engine.sampling.triton_kernels.noise")
prepare_interpreter()

BLOCKS = 8


@triton.jit
def write_noise(numbers, out, COUNT: tl.constexpr):
    """numbers: the first block, position and seed, int64. out: float32 [COUNT, 64]."""
    block, position, seed = tl.load(numbers).to(tl.int32), tl.load(numbers + 1), tl.load(numbers + 2)
    at = tl.arange(0, COUNT)[:, None] * noise.NOISE_BLOCK + tl.arange(0, noise.NOISE_BLOCK)[None, :]
    tl.store(out + at, noise.gumbel_of_blocks(block, position, seed, COUNT))


def noise_of(seed: int, position: int, first: int, blocks: int = BLOCKS) -> Tensor:
    """Returns the noise of `blocks` blocks of ids from block `first` on."""
    out = torch.empty(blocks * NOISE_BLOCK)
    signed = seed - 2**64 if seed >= 2**63 else seed
    write_noise[(1,)](torch.tensor([first, position, signed]), out, COUNT=blocks)
    return out


def test_vectors_of_the_documentation() -> None:
    for seed, position, token, value in VECTORS:
        first = token // NOISE_BLOCK // 4 * 4
        found = noise_of(seed, position, first, 4)[token - first * NOISE_BLOCK].item()
        assert found == pytest.approx(value, abs=1e-6)


@pytest.mark.skipif(library() is None, reason="the compiled library was not built")
@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**64 - 1, 2**32 - 1), (2**63 + 12345, 777), (3**40, 2**31)])
def test_the_bits_of_the_compiled_sampler(seed: int, position: int) -> None:
    count = BLOCKS * NOISE_BLOCK
    batch = SamplingBatch.build([SamplingParams(temperature=1.0, seed=seed)], [position])
    tokens, scores, _ = best_tokens(torch.zeros(1, count), batch, count, log_probs=False)
    assert sorted(tokens[0].tolist()) == list(range(count))
    found = noise_of(seed, position, 0)
    assert torch.equal(found[tokens[0]].view(torch.int32), scores[0].view(torch.int32))


def test_the_values_of_other_devices_within_a_rounding() -> None:
    first, seed = 2000, 3**39
    tokens = torch.arange(BLOCKS * NOISE_BLOCK) + first * NOISE_BLOCK
    expected = gumbel_at(torch.tensor([seed]), torch.tensor([5]), tokens[None])[0]
    found = noise_of(seed, 5, first)
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=2e-7)
    assert (found == expected).double().mean() > 0.99
