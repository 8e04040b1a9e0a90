"""The lock of a directory."""

from pathlib import Path

import pytest

from draftwire_core.training.learning.directory_lock import DirectoryLock


def test_one_at_a_time(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        with pytest.raises(ValueError, match=f"--dir: another learner uses {tmp_path}"), DirectoryLock(tmp_path):
            pytest.fail("it is taken")
        with pytest.raises(ValueError, match="another learner"), DirectoryLock(tmp_path):
            pytest.fail("it is still taken")
    with DirectoryLock(tmp_path):
        pass
