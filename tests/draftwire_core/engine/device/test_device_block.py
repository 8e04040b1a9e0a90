"""Numbers of the host and their copy on a device."""

import pytest
import torch

from draftwire_core.engine.device.device_block import DeviceBlock
from tests.harness.engine.pretended_gpu import DEVICE, plain, pretended_gpu

SECTIONS = {
    "first": ((3,), torch.int64),
    "flags": ((2, 3), torch.bool),
    "last": ((4,), torch.int64),
}


def test_what_is_written_is_on_the_device_once_it_is_sent() -> None:
    block = DeviceBlock(SECTIONS, torch.device("cpu"))
    assert {name: (tuple(each.shape), each.dtype) for name, each in block.device.items()} == SECTIONS
    address = block.device["last"].data_ptr()
    block.begin()
    block.host["first"][:] = [1, -2, 3]
    block.host["flags"][1, 2] = True
    block.host["last"][:] = 7
    assert not block.device["first"].any()
    block.send(2)
    assert block.device["first"].tolist() == [1, -2, 3] and block.device["flags"].sum() == 1
    assert block.device["last"].tolist() == [7, 7, 0, 0] and block.device["last"].data_ptr() == address
    block.send()
    assert block.device["last"].tolist() == [7] * 4


def test_sections_begin_where_kernels_read_whole_vectors() -> None:
    block = DeviceBlock(SECTIONS, torch.device("cpu"))
    first = block.device["first"].data_ptr()
    assert [(each.data_ptr() - first) % 16 for each in block.device.values()] == [0, 0, 0]


@pytest.mark.parametrize("copied", [True, False])
def test_a_gpu_gets_it_without_a_wait(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing again waits only if the last copy has not been made."""
    with pretended_gpu() as gpu:
        monkeypatch.setattr(torch.cuda.Event, "query", lambda _: copied)
        block = DeviceBlock(SECTIONS, DEVICE)
        with gpu.counted() as count:
            block.begin()
            block.host["last"][:] = 5
            block.send(1)
            assert count == {"copies to the device": 1}
            assert plain(block.device["last"]).tolist() == [5, 0, 0, 0]
            block.begin()
        assert count["waits"] == (not copied)
