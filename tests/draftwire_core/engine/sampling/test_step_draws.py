"""The numbers of a step's draws."""

import numpy as np
import torch

from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import (
    MIN_P,
    NUMBERS,
    PLAIN_NUMBERS,
    TOP_K,
    TOP_P,
    StepDraws,
    numbers_on_device,
    write_none,
)

PARAMS = [
    SamplingParams(temperature=0.0, seed=3),
    SamplingParams(temperature=0.1, seed=2**64 - 1),
    SamplingParams(typical_p=0.4, top_k=4, seed=5),
]


def test_numbers() -> None:
    """Places of earlier draws that are not used any more are cleared."""
    numbers = np.full((NUMBERS, 5), 77, dtype=np.int64)
    draws = StepDraws(SamplingBatch.build(PARAMS, [7, 2**32 - 1, 9]), [-1, 8, 4], [0, 0, 1])
    draws.write(numbers, np.array([2, 0, 1]))
    rows, seeds, positions, temperatures, tokens, parents, *filters = numbers
    assert len(draws) == 3
    assert rows.tolist() == [2, 0, -1, -1, -1]  # the third has typical_p
    assert seeds[:3].tolist() == [3, -1, 5] and positions[:3].tolist() == [7, 2**32 - 1, 9]
    found = torch.from_numpy(temperatures[:3]).to(torch.int32).view(torch.float32)
    assert torch.equal(found, torch.tensor([0.0, 0.1, 1.0]))
    assert tokens[:3].tolist() == [-1, 8, 4] and parents[:3].tolist() == [0, 0, 1]
    assert [each[:3].tolist() for each in filters] == [[0, 0, 4], [0, 0, 0], [0, 0, 0]]
    write_none(numbers)
    assert (numbers[0] == -1).all()


def test_numbers_of_filters() -> None:
    """They are there only if a draw has one, also on a device."""
    params = [SamplingParams(top_p=0.7), SamplingParams(min_p=1.0), SamplingParams(min_p=0.5, seed=1)]
    sampling = SamplingBatch.build(params, [1, 2, 3])
    numbers = StepDraws.of_roots(sampling).numbers()
    assert numbers[TOP_P, :1].view(torch.float64).item() == 0.7 and not numbers[TOP_P, 1:].any()
    assert numbers[MIN_P].tolist()[:2] == [0, 1 << 32]
    assert numbers[MIN_P, 2:].to(torch.int32).view(torch.float32).item() == torch.tensor(0.5).log()
    there = numbers_on_device(sampling)
    assert torch.equal(there[TOP_K:], numbers[TOP_K:]) and torch.equal(there[:4], numbers[:4])
    plain = SamplingBatch.build(PARAMS[:2], [1, 2])
    assert len(StepDraws.of_roots(plain).numbers()) == len(numbers_on_device(plain)) == PLAIN_NUMBERS
