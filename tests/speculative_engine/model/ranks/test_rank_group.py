"""Models of transformers' architectures, split between two processes over gloo."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import processes
from tests.harness.engine.engines import tiny_model
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[4]
SPLIT = ["Gemma2", "Llama", "Mixtral", "Phi3", "Qwen3"]
"""Split plans of several kinds: with transformers' own embedding, experts, replicated inputs and outputs, and norms of
heads."""
OTHER_SIZES = {"OddVocabulary": {"vocab_size": 301}, "Tied": {"tie_word_embeddings": True}}
"""Variants of Llama."""
EXPERTS = {"Mixtral"}
WHOLE_ATTENTION = {"Phi3"}
"""Models of which each rank holds all keys and values."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The pair's report on every model; it runs once."""
    directory = tmp_path_factory.mktemp("checkpoints")
    for name in (*SPLIT, "GPT2"):
        tiny_model(name).save_pretrained(directory / name)
    for name, changes in OTHER_SIZES.items():
        tiny_model("Llama", **changes).save_pretrained(directory / name)
    done = processes.run(
        [sys.executable, "-m", "tests.harness.engine.rank_pair", str(directory)],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*SPLIT, *OTHER_SIZES])
def test_two_ranks_say_what_the_whole_says(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert isinstance(report, dict), report
    assert report["plain"] == report["whole"]
    assert report["drafted"] == report["whole"]
    assert report["rejected"] > 0
    assert report["bit_exact"] or name in EXPERTS
    assert report["same_fingerprint"]
    assert report["kv_share"] == (1.0 if name in WHOLE_ATTENTION else 0.5)


def test_the_pair_goes_on_after_a_model_that_cannot_be_split(reports: dict[str, Any]) -> None:
    assert "--tensor-parallel: models of type gpt2 cannot be split" in reports["GPT2"]
