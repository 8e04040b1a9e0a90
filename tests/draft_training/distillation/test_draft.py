"""A trained draft as written to disk."""

import stat
from pathlib import Path

from draft_training.distillation.draft import Draft

MODELS = Path(__file__).resolve().parents[3] / "models"


def test_whoever_may_read_one_of_its_files_may_read_all(tmp_path: Path) -> None:
    Draft(str(MODELS / "draft")).write(tmp_path / "written")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "written").iterdir()}
    assert "model.safetensors" in modes
    assert len(set(modes.values())) == 1, modes
