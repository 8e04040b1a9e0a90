"""The numbers of a step's draws."""

import numpy as np
import torch

from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.sampling.step_draws import NUMBERS, StepDraws, write_none

PARAMS = [
    SamplingParams(temperature=0.0, seed=3),
    SamplingParams(temperature=0.1, seed=2**64 - 1),
    SamplingParams(top_k=4, seed=5),
]


def test_numbers() -> None:
    """Places of earlier draws that are not used any more are cleared."""
    numbers = np.full((NUMBERS, 5), 77, dtype=np.int64)
    draws = StepDraws(SamplingBatch.build(PARAMS, [7, 2**32 - 1, 9]), [-1, 8, 4], [0, 0, 1])
    draws.write(numbers, np.array([2, 0, 1]))
    rows, seeds, positions, temperatures, tokens, parents = numbers
    assert len(draws) == 3
    assert rows.tolist() == [2, 0, -1, -1, -1]  # the third filters tokens
    assert seeds[:3].tolist() == [3, -1, 5] and positions[:3].tolist() == [7, 2**32 - 1, 9]
    found = torch.from_numpy(temperatures[:3]).to(torch.int32).view(torch.float32)
    assert torch.equal(found, torch.tensor([0.0, 0.1, 1.0]))
    assert tokens[:3].tolist() == [-1, 8, 4] and parents[:3].tolist() == [0, 0, 1]
    write_none(numbers)
    assert (numbers[0] == -1).all()
