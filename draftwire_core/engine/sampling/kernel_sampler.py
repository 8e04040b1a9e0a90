"""Coupled sampling on GPUs by the kernels of `triton_kernels`: two launches a step, which CUDA graphs can hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from draftwire_core.engine.device.gpu import KernelsUnusableError, kernels_tried
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import PLAIN_NUMBERS, StepDraws

SLICE = 1024
"""Tokens that one program scores: a row of 128k tokens is about one program for each multiprocessor."""
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
"""How the kernels are compiled. Products and sums that are fused would not round as the compiled sampler does."""
_LEAST_ROWS = 16
_FILTER_BLOCK = 4096
"""Tokens that a program looks at at once to find what a filter keeps."""
_FILTER_OPTIONS: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": False}
_TILE = 2048
"""Slices times rows that are compared at a time."""


class KernelSampler:
    """Draws the tokens of a step. A row's token has the bits of the compiled sampler's, whatever the other rows."""

    def __init__(self) -> None:
        """Raises KernelsUnusableError without Triton."""
        try:
            from draftwire_core.engine.sampling.triton_kernels.draw import best_of_slices, follow_best
            from draftwire_core.engine.sampling.triton_kernels.filters import least_kept
            from draftwire_core.engine.sampling.triton_kernels.rank import rank_rows, rank_slices
        except ImportError as error:
            raise KernelsUnusableError(f"Triton cannot be imported: {error}") from error
        self._best_of_slices, self._follow_best = best_of_slices, follow_best
        self._rank_slices, self._rank_rows = rank_slices, rank_rows
        self._least_kept = least_kept

    def draw(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Draws tokens and marks those on the path of the tokens drawn, without waiting for the device.

        logits: [rows, V], bfloat16, float16 or float32, each row contiguous. draws: int64 [PLAIN_NUMBERS or NUMBERS,
        room] on the same device, written by `StepDraws.write`. Returns int32 [2, room]: the tokens, -1 in bad rows (see
        `coupled_sampler.Sampled`) and where nothing is drawn, and 1 for each draw on the path, else 0.
        """
        room, vocabulary = draws.shape[1], logits.shape[1]
        slices = -(-vocabulary // SLICE)
        rows = max(_LEAST_ROWS, _power_of_two(room))
        scores = torch.empty((room, slices), dtype=torch.float32, device=logits.device)
        token_ids = torch.empty((room, slices), dtype=torch.int32, device=logits.device)
        drawn = torch.empty((2, room), dtype=torch.int32, device=logits.device)
        with torch.cuda.device_of(logits):  # Triton launches on the current device
            filtered, least = self._filter(logits, draws)
            self._best_of_slices[(slices, room)](
                logits, logits.stride(0), vocabulary, draws, room, least, scores, token_ids,
                SLICE=SLICE, FILTERED=filtered, **OPTIONS,
            )  # fmt: skip
            self._follow_best[(1,)](
                draws, room, scores, token_ids, slices, drawn,
                ROWS=rows, SLICES=max(1, _TILE // rows), ROUNDS=rows.bit_length() - 1, **OPTIONS,
            )  # fmt: skip
        return drawn

    def rank(self, logits: Tensor, draws: Tensor, width: int, into: Tensor | None = None) -> Tensor:
        """Finds the `width` best tokens of each draw, best first, without waiting for the device.

        For logits and draws see `draw`. Returns int32 [room, 2, width]: the tokens, as `coupled_sampler.Candidates` has
        them, and the bits of their log-probabilities float32, within rounding of those. Undefined where nothing is
        drawn. into: the tensor to write them to; by default a new one.
        """
        room, vocabulary = draws.shape[1], logits.shape[1]
        slices = -(-vocabulary // SLICE)
        floats, integers = ({"dtype": each, "device": logits.device} for each in (torch.float32, torch.int32))
        scores, token_ids = torch.empty((room, slices, width), **floats), torch.empty((room, slices, width), **integers)
        tops, masses = torch.empty((room, slices), **floats), torch.empty((room, slices), **floats)
        ranked = torch.empty((room, 2, width), **integers) if into is None else into
        with torch.cuda.device_of(logits):
            filtered, least = self._filter(logits, draws)
            self._rank_slices[(slices, room)](
                logits, logits.stride(0), vocabulary, draws, room, least, scores, token_ids, tops, masses,
                SLICE=SLICE, WIDTH=width, FILTERED=filtered, **OPTIONS,
            )  # fmt: skip
            self._rank_rows[(room,)](
                logits, logits.stride(0), draws, room, scores, token_ids, tops, masses, slices, ranked,
                SLICES=_power_of_two(slices), RANKED=_power_of_two(slices * width), WIDTH=width, **OPTIONS,
            )  # fmt: skip
        return ranked

    def _filter(self, logits: Tensor, draws: Tensor) -> tuple[bool, Tensor]:
        """Whether draws have the numbers of filters, and if so the least scaled logit that each keeps."""
        if len(draws) == PLAIN_NUMBERS:
            return False, logits
        room = draws.shape[1]
        least = torch.empty(room, dtype=torch.float32, device=logits.device)
        self._least_kept[(room,)](
            logits, logits.stride(0), logits.shape[1], draws, room, least, BLOCK=_FILTER_BLOCK, **_FILTER_OPTIONS
        )
        return True, least


@cache
def sampler_of(device: torch.device) -> tuple[KernelSampler | None, str]:
    """The sampler if it is usable on a device, and "yes", or why it is not; found out once for each device."""
    try:
        return usable_sampler(device), "yes"
    except KernelsUnusableError as error:
        return None, str(error)


def usable_sampler(device: torch.device) -> KernelSampler:
    """Returns the sampler if its kernels draw on a device what the host draws. Raises KernelsUnusableError.

    They are compiled at the first call, which takes a second or two and needs a C compiler.
    """
    if device.type != "cuda":
        raise KernelsUnusableError("the kernels are for GPUs")
    sampler = KernelSampler()
    with kernels_tried():
        equal = draws_as_the_host(sampler, device)
    if not equal:
        raise KernelsUnusableError("the kernels draw other tokens than the host")
    return sampler


def draws_as_the_host(sampler: KernelSampler, device: torch.device) -> bool:
    """Whether a trial of a few draws on a device gives the tokens that the host draws."""
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in (1, 2**64 - 1) for temperature in _TRIED]
    count = len(params)
    sampling = SamplingBatch.build(params, [1000 * row for row in range(count)])
    logits = torch.randn((count, 3 * SLICE + 7), generator=torch.Generator().manual_seed(count))
    numbers = StepDraws.of_roots(sampling).numbers()
    tokens, on_path = sampler.draw(logits.to(device), numbers.to(device)).cpu()
    return bool(on_path.all()) and torch.equal(tokens.long(), sample(logits, sampling).token_ids)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


_TRIED = (0.0, 0.7, 1.0, 1.3)
"""Temperatures of the trial."""
