"""`draftwire drafters suggest`: the choice as a table."""

import io

import pytest
from rich.console import Console

from draftwire_tools.suggest import show, suggest

LOOKUP = {"name": "local:ngram", "kind": "lookup", "fits": True, "gain": None, "reason": "looks up"}
NOTHING = {"fetch_bytes": 0, "memory_bytes": 0, "licence": "", "checked": ""}
FOUND = {
    "architecture": "llama",
    "layers": 32,
    "vocabulary": 128256,
    "bytes_per_token": 15_010_000_000,
    "how": "reckoned",
    "candidates": [
        {
            **{"name": "lab/head", "kind": "eagle3", "fits": False, "gain": 2.04, "reason": "not timed yet"},
            **{"fetch_bytes": 1_900_000_000, "memory_bytes": 1_900_000_000, "licence": "mit", "checked": "by hand"},
        },
        {**NOTHING, "name": "small", "kind": "model", "fits": True, "gain": 1.5, "reason": "fits"},
        {**NOTHING, "name": "other", "kind": "model", "fits": True, "gain": 1.2, "reason": "fits, too"},
        {**NOTHING, **LOOKUP},
    ],
}


def test_the_choice_is_a_table_with_reasons() -> None:
    told = io.StringIO()
    show(FOUND, Console(file=told, width=120))
    lines = told.getvalue().splitlines()
    assert lines[0] == "target: llama, 32 layers, 128256 tokens, 15.0 GB of weights read for a token"
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert rows == [
        ["lab/head", "no", "1.9 GB", "1.9 GB", "2.0x"],
        ["small", "chosen", "", "", "1.5x"],
        ["other", "otherwise", "", "", "1.2x"],
        ["local:ngram", "always", "", "", "by text"],
    ]
    assert "lab/head (eagle3): not timed yet; licence mit; checked: by hand" in lines


def test_a_device_that_is_none() -> None:
    with pytest.raises(ValueError, match="--device: must be cpu, cuda or cuda:N, got 'tpu'"):
        suggest("target", device="tpu")
