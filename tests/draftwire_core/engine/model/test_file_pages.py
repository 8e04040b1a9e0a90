"""Letting go of the pages of a tensor changes no value of it, mapped or not, written to or not."""

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.model.file_pages import let_go

_BYTES = 8 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are let go on Linux alone")


def of_file() -> int:
    """Bytes of this process's memory that are a file's."""
    found = re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def mapped(path: Path) -> torch.Tensor:
    torch.randint(256, (_BYTES,), dtype=torch.uint8).numpy().tofile(path)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), _BYTES, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def test_pages_of_a_file_are_let_go_and_read_again(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "file")
    values = tensor.clone()
    read = of_file()
    let_go(tensor[100:])
    if of_file() == read:
        pytest.skip("this system does not tell which pages are a file's")
    assert of_file() < read - _BYTES // 2
    assert torch.equal(tensor, values)


def test_what_was_written_stays(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "file")
    tensor[5000] += 1
    values = tensor.clone()
    let_go(tensor)
    assert torch.equal(tensor, values)


@pytest.mark.parametrize("count", [0, 10, 1_000_000])
def test_other_memory_stays(count: int) -> None:
    tensor = torch.arange(count)
    let_go(tensor)
    assert torch.equal(tensor, torch.arange(count))
