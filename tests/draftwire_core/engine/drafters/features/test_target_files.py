"""What a drafter has to fit is read from a target's configuration, whichever fields that leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.drafters.features.target_files import shape_of_files


def shape_of(directory: Path, **fields: Any) -> TargetShape:
    (directory / "config.json").write_text(json.dumps(fields))
    return shape_of_files(Checkpoint("target", directory, from_hub=False))


def test_sizes_that_the_file_names(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 50}
    expected = TargetShape(3, 16, 50, "Own")
    assert shape_of(tmp_path, architectures=["Own"], model_type="own", **sizes) == expected
    assert shape_of(tmp_path, architectures=["Own"], model_type="own", text_config=sizes) == expected


def test_sizes_that_transformers_knows(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560}  # as published for Gemma 3
    name = "Gemma3ForConditionalGeneration"
    assert shape_of(tmp_path, architectures=[name], model_type="gemma3", text_config=text).vocab_size == 262208


def test_sizes_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^target target: config\.json cannot be read: "):
        shape_of(tmp_path, model_type="own", hidden_size=16)
