"""A drafter of the hub: its download is reported, file after file, and what is in the cache is not downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT
from tests.harness.stand_ins.hub_server import serving_hub

pytestmark = pytest.mark.processes

PROGRAM = """
import json
from draftwire_core.engine.checkpoint.hub import fetch_drafter
counts = [], []
for each in counts:
    place = fetch_drafter("lab/heads", "main", each.append)
print(json.dumps([sorted(file.name for file in place.iterdir()), *counts]))
"""
FILES = {"config.json": 20, "model.safetensors": 3_000_000, "README.md": 10}
"""Bytes by file; the card is not fetched."""


def test_its_bytes_are_counted(tmp_path: Path) -> None:
    heads = tmp_path / "served" / "lab" / "heads"
    heads.mkdir(parents=True)
    for name, size in FILES.items():
        (heads / name).write_bytes(name[:1].encode() * size)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    with serving_hub(tmp_path / "served") as hub:
        # In a separate process: the hub's library reads its variables on import.
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=kept | own | {"HF_ENDPOINT": hub.url},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    names, first, second = json.loads(done.stdout)
    assert names == ["config.json", "model.safetensors"]
    assert (first[-1], second) == (3_000_020, [])
    assert first == sorted(first)
    assert done.stderr == ""
