"""The tokens that a step of runner V2 sampled, on their way from the device to the host."""

from __future__ import annotations

from typing import Any

import torch


class StepReport:
    """The lengths and the last tokens of a step's requests, copied to the host.

    Under runner V2 the host launches a step's kernels, sampling included, and goes on: `propose` is called before the
    device has computed what was sampled. The tokens are in tensors there, and a drafter on another host needs them as
    numbers. So one wait for the device cannot be saved. Everything that the host has to know is gathered by the device
    into one small tensor, whose copy to pinned memory is launched behind the step; the wait is for an event after that
    copy alone. Neither the device nor other streams are synchronised.
    """

    def __init__(self, states: Any, indices: torch.Tensor, num_sampled: torch.Tensor, width: int):
        """Launches the copy. states: the runner's RequestState. indices: int [requests], their places in it.
        num_sampled: int [requests]. width: number of last tokens to copy of each request."""
        lengths = states.total_len.gpu[indices]
        places = lengths[:, None] - width + torch.arange(width, dtype=lengths.dtype, device=lengths.device)
        tokens = states.all_token_ids.gpu[indices[:, None], places.clamp_(min=0)]
        report = torch.cat([num_sampled[:, None].to(tokens.dtype), lengths[:, None].to(tokens.dtype), tokens], dim=1)
        # A copy that does not block goes to pinned memory, which torch does not reuse before it is done.
        self._report = report.to("cpu", non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if report.device.type != "cpu":
            # As vLLM's own, an event that blocks: the thread sleeps instead of spinning, and this process reads the
            # drafters' messages meanwhile. (On other GPUs vLLM puts their events in the place of CUDA's.)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()

    def read(self) -> tuple[list[int], list[int], list[list[int]]]:
        """Waits for the copy. Returns for each request how many tokens were sampled, its length, and its last tokens,
        of which those beyond its length are repetitions of its first one."""
        if self._copied is not None:
            self._copied.synchronize()
        table = self._report.tolist()
        return [row[0] for row in table], [row[1] for row in table], [row[2:] for row in table]
