"""Copies of the host's numbers to a device, and back, without waiting for the device.

A copy from ordinary memory waits until the device has done all that was queued before it. Copies from pinned memory are
queued like everything else; torch keeps such memory and uses it again once the copy has been made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_ALIGNMENT = 8
"""Bytes: the largest element that is copied."""


def to_device(host: Tensor, device: torch.device | str) -> Tensor:
    """Copies a tensor of the host to a device; returns it itself if that is the host."""
    if torch.device(device).type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def to_device_together(hosts: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copies tensors of the host to a device by one copy, whose number costs more than its size."""
    if torch.device(device).type != "cuda":
        return [host.to(device) for host in hosts]
    return apart(to_device(together(hosts), device), hosts)


Wait = Callable[[Callable[[], bool]], None]
"""Waits until its argument, asked repeatedly, says that the device is as far as awaited; may raise an error instead."""


class HostCopy:
    """A copy on the host of a device's tensor, queued behind all that was launched before it."""

    def __init__(self, source: Tensor, wait: Wait | None = None):
        """wait: used where the device may never get there, as when it waits for another device."""
        on_gpu = source.device.type == "cuda"
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=on_gpu)
        self._host.copy_(source, non_blocking=True)
        self._made: torch.cuda.Event | None = None
        self._wait = wait
        if on_gpu:
            self._made = torch.cuda.Event()
            self._made.record(torch.cuda.current_stream(source.device))

    def get(self) -> Tensor:
        """The copy; waits until it has been made."""
        if self._made is not None:
            if self._wait is not None:
                self._wait(self._made.query)
            self._made.synchronize()
        return self._host


def together(hosts: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors of one device in one, uint8 [n]; each begins at a multiple of 8."""
    parts: list[Tensor] = []
    for host in hosts:
        raw = host.contiguous().view(-1)
        raw = (
            raw.view(torch.uint8) if len(raw) else raw.new_empty(0, dtype=torch.uint8)
        )  # an empty one may have no stride
        parts.append(raw)
        if len(raw) % _ALIGNMENT:
            parts.append(raw.new_zeros(-len(raw) % _ALIGNMENT))
    return torch.cat(parts)


def apart(raw: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that `together` has joined, as views of its result on any device. like: tensors of their shapes and
    dtypes."""
    found: list[Tensor] = []
    begin = 0
    for each in like:
        end = begin + each.nbytes
        found.append(raw[begin:end].view(each.dtype).view(each.shape))
        begin = end + -each.nbytes % _ALIGNMENT
    return found
