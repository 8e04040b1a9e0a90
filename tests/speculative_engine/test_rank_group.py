"""Models of the library's architectures split between two processes, over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.speculative_engine.support import ARCHITECTURES, tiny_model

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {
    "GPT2": "base_model_tp_plan",
}
"""What is said of models that cannot be split."""
ODD = {
    "OddHeads": (
        {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
        "3 equally, which is num_attention_heads",
    ),
    "OddKeyHeads": ({"num_attention_heads": 4, "num_key_value_heads": 1}, "1 equally, which is num_key_value_heads"),
    "OddWidth": ({"intermediate_size": 171}, "171 equally, which is intermediate_size"),
}
"""Sizes of a Llama that two cannot share."""
OTHER_SIZES = {"OddVocabulary": {"vocab_size": 301}, "Tied": {"tie_word_embeddings": True}}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the pair says of every model; it runs once."""
    directory = tmp_path_factory.mktemp("checkpoints")
    for name in ARCHITECTURES:
        tiny_model(name).save_pretrained(directory / name)
    for name, changes in {**{name: changes for name, (changes, _) in ODD.items()}, **OTHER_SIZES}.items():
        tiny_model("Llama", **changes).save_pretrained(directory / name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.speculative_engine.rank_pair", str(directory)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - REFUSED.keys()) + sorted(OTHER_SIZES))
def test_two_ranks_say_what_the_whole_says(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert isinstance(report, dict), report
    assert report["plain"] == report["whole"]
    assert report["drafted"] == report["whole"]
    assert report["rejected"] > 0
    assert report["same_fingerprint"]
    assert report["kv_share"] == 0.5


@pytest.mark.parametrize("name", sorted(REFUSED) + sorted(ODD))
def test_what_cannot_be_split_is_refused_by_flag_and_field(reports: dict[str, Any], name: str) -> None:
    refusal = reports[name]
    assert isinstance(refusal, str)
    assert "--tensor-parallel" in refusal
    assert (REFUSED.get(name) or ODD[name][1]) in refusal
