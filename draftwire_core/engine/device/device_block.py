"""Numbers of the host and their copy on a device, at fixed addresses, sent by one copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Bytes: kernels read sections that begin at multiples of this in whole vectors."""


class DeviceBlock:
    """Named arrays of the host and tensors of a device that `send` makes equal to them.

    On GPUs the host's memory is pinned, so that sending does not wait for the device.
    """

    def __init__(self, sections: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device):
        """sections: shape and dtype of each array, all zeros at first; of the last one a part can be sent."""
        self._parts: dict[str, tuple[int, int]] = {}
        size = 0
        for name, (shape, dtype) in sections.items():
            size += -size % _ALIGNMENT
            begin, size = size, size + int(np.prod(shape)) * dtype.itemsize
            self._parts[name] = begin, size
        self._on_gpu = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=self._on_gpu)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent: torch.cuda.Event | None = None
        self.sent_bytes = 0
        """Bytes of the last copy."""
        self.host: dict[str, np.ndarray] = {}
        """The arrays, to be written between `begin` and `send`."""
        self.device: dict[str, Tensor] = {}
        """The tensors, of the same shapes and dtypes."""
        for name, (shape, dtype) in sections.items():
            part = slice(*self._parts[name])
            self.host[name] = self._host[part].view(dtype).view(shape).numpy()
            self.device[name] = self._device[part].view(dtype).view(shape)

    def begin(self) -> None:
        """Begins to write: returns when what was sent before has been copied, which is so if its results are there."""
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()

    def send(self, used: int | None = None) -> None:
        """Queues one copy of all arrays to the device. used: only so many elements of the last one, if it has one
        dimension."""
        begin, end = next(reversed(self._parts.values()))
        if used is not None:
            end = begin + used * next(reversed(self.device.values())).itemsize
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        self.sent_bytes = end
        if self._on_gpu:
            self._sent = self._sent or torch.cuda.Event()
            self._sent.record(torch.cuda.current_stream(self._device.device))
