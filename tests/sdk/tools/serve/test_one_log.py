"""One log of several processes."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_tools.serve import one_log
from draftwire_tools.serve.one_log import OneLog
from tests.harness.waiting import eventually


def test_a_full_disk_is_told_once_and_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(one_log, "_SECONDS", 0.01)
    child: Any = SimpleNamespace(name="gateway", log=tmp_path / "log")
    child.log.write_text("one\n")
    ends: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ends.append)
    said = ""
    with OneLog(Path("/dev/full")) as log:
        log.follow(child)

        def told() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return bool(said)

        eventually(told, "it is told")
        with child.log.open("a") as more:
            more.write("two\n")
        assert log._thread.is_alive()
    assert said + capsys.readouterr().err == (
        "draftwire: --log: /dev/full cannot be written: No space left on device\n"
    )
    assert not ends


@pytest.mark.skipif(sys.platform != "linux", reason="needs holes in files")
def test_what_is_copied_takes_no_space_of_its_own(tmp_path: Path) -> None:
    child: Any = SimpleNamespace(name="gateway", log=tmp_path / "log")
    line = "x" * 1000 + "\n"
    with child.log.open("w", encoding="ascii") as writing, OneLog(tmp_path / "one") as log:
        log.follow(child)
        writing.write(line * 5000)
        writing.flush()
        eventually(lambda: child.log.stat().st_blocks * 512 < 2 << 20, "its space is given back")
        assert child.log.stat().st_size == 5000 * len(line)
        assert child.log.read_text("ascii").endswith(line * 1000)
        writing.write("the end\n")
        writing.flush()
    assert (tmp_path / "one").read_text("ascii") == f"gateway | {line}" * 5000 + "gateway | the end\n"
