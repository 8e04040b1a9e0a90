"""The names that the release's wheels install."""

import zipfile
from pathlib import Path

import pytest

from scripts.release import build_wheels as script


def test_a_wheel_with_a_generic_name_is_an_error(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "draftwire-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("draftwire/__init__.py", "")
        wheel.writestr("gateway/__init__.py", "")
        wheel.writestr("draftwire-1.dist-info/METADATA", "")
    with pytest.raises(script.WheelError, match=r"\.whl would install gateway$"):
        script.check_names(tmp_path / "draftwire-1-py3-none-any.whl")
