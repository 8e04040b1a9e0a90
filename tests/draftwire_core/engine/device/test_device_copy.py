"""Copies to a device: several tensors in one."""

import numpy as np
import torch

from draftwire_core.engine.device.device_copy import HostCopy, apart, to_device, to_device_together, together
from tests.harness.engine.pretended_gpu import DEVICE, pretended_gpu

HOSTS = [
    torch.tensor([[1, -2, 3], [4, 5, -(2**62)]]),
    torch.tensor([0.5, torch.inf, 3.0]),
    torch.tensor([True, False, True, True, False]),
    torch.empty(0),
    torch.tensor([7], dtype=torch.int32),
    torch.tensor([1.5], dtype=torch.float64),
]


def test_tensors_travel_together() -> None:
    raw = together(HOSTS)
    assert raw.dtype == torch.uint8 and len(raw) == 48 + 16 + 8 + 0 + 8 + 8
    for found, host in zip(apart(raw, HOSTS), HOSTS, strict=True):
        assert found.dtype == host.dtype and torch.equal(found, host)
        assert not len(found) or found.untyped_storage().data_ptr() == raw.untyped_storage().data_ptr()


def test_tensors_without_elements() -> None:
    hosts = [
        torch.from_numpy(np.empty((2, 0), dtype=np.int64)),
        torch.ones(3),
        torch.from_numpy(np.zeros(0, np.float32)),
    ]
    found = apart(together(hosts), hosts)
    assert [each.shape for each in found] == [(2, 0), (3,), (0,)] and found[1].tolist() == [1, 1, 1]


def test_tensors_that_are_not_contiguous() -> None:
    host = torch.arange(6).view(2, 3).t()
    (found,) = apart(together([host]), [host])
    assert torch.equal(found, host)


def test_on_the_host_nothing_is_copied() -> None:
    assert to_device(HOSTS[0], "cpu") is HOSTS[0]
    assert [found is host for found, host in zip(to_device_together(HOSTS, "cpu"), HOSTS, strict=True)] == [True] * 6


def test_a_copy_on_the_host_keeps_what_was_there() -> None:
    source = torch.tensor([1, 2])
    copied = HostCopy(source)
    source.zero_()
    assert copied.get().tolist() == [1, 2]


def test_reading_a_gpu_waits_once() -> None:
    with pretended_gpu() as gpu:
        source = torch.ones(2, device=DEVICE)
        with gpu.counted() as count:
            copied = HostCopy(source)
            assert count == {"copies back": 1}
            assert copied.get().tolist() == [1, 1]
        assert count == {"copies back": 1, "waits": 1}
