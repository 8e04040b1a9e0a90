"""The time of queued work."""

import torch

from draftwire_core.engine.device.device_timer import DeviceTimer
from tests.harness.engine.pretended_gpu import DEVICE, pretended_gpu


def test_on_a_cpu_it_is_known_at_once() -> None:
    timer = DeviceTimer()
    with timer.timed(torch.device("cpu")):
        torch.ones(1000).sum()
    assert timer.take() > 0 == timer.take()


def test_on_a_gpu_nothing_waits_for_it() -> None:
    timer = DeviceTimer()
    with pretended_gpu() as gpu, gpu.counted() as count:
        for _ in range(3):
            with timer.timed(DEVICE):
                pass
        assert timer.take() == 0.003  # a millisecond each
        assert timer.take() == 0
    assert not count
