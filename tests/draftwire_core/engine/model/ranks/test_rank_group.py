"""Models of transformers' architectures, split between two processes over gloo."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import processes
from tests.harness.engine.engines import tiny_model
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[5]
SPLIT = ["Gemma2", "Llama", "Mixtral", "Phi3", "Qwen3"]
"""Split plans of several kinds: with transformers' own embedding, experts, replicated inputs and outputs, and norms of
heads."""
OTHER_SIZES: dict[str, tuple[str, dict[str, object]]] = {
    "OddVocabulary": ("Llama", {"vocab_size": 301}),
    "Tied": ("Llama", {"tie_word_embeddings": True}),
    "OddExperts": ("Mixtral", {"vocab_size": 301}),
}
"""Variants of some."""
FEW = ["Gemma2", "OddExperts", "Phi3"]
EXPERTS = {"Mixtral", "OddExperts"}
WHOLE_ATTENTION = {"Phi3"}
"""Models of which each rank holds all keys and values."""


Reports = dict[str, Any]


def reports_of(directory: Path, names: Iterable[str], tokens: int) -> Reports:
    """The pair's report on models, which generate so many tokens."""
    for name in names:
        library, changes = OTHER_SIZES.get(name, (name, {}))
        tiny_model(library, **changes).save_pretrained(directory / name)
    done = processes.run(
        [sys.executable, "-m", "tests.harness.engine.rank_pair", str(directory), str(tokens)],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    found: Reports = json.loads(done.stdout.splitlines()[-1])
    return found


def check_pair(report: dict[str, Any], name: str) -> None:
    """The split model says what the whole one says, plainly and with drafts."""
    assert isinstance(report, dict), report
    assert report["plain"] == report["whole"]
    assert report["drafted"] == report["whole"]
    assert report["rejected"] > 0
    assert report["bit_exact"] or name in EXPERTS
    assert report["same_fingerprint"]
    assert report["kv_share"] == (1.0 if name in WHOLE_ATTENTION else 0.5)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Reports on short outputs."""
    return reports_of(tmp_path_factory.mktemp("checkpoints"), (*FEW, "GPT2"), 5)


@pytest.mark.parametrize("name", FEW)
def test_two_ranks_say_what_the_whole_says(reports: Reports, name: str) -> None:
    check_pair(reports[name], name)


def test_the_pair_goes_on_after_a_model_that_cannot_be_split(reports: Reports) -> None:
    assert "--tensor-parallel: models of type gpt2 cannot be split" in reports["GPT2"]


@pytest.mark.slow
class TestAll:
    """More models, and longer outputs."""

    @pytest.fixture(scope="class")
    def longer(self, tmp_path_factory: pytest.TempPathFactory) -> Reports:
        """The pair's report on every model; it runs once."""
        return reports_of(tmp_path_factory.mktemp("checkpoints"), (*SPLIT, *OTHER_SIZES), 20)

    @pytest.mark.parametrize("name", [*SPLIT, *OTHER_SIZES])
    def test_two_ranks_say_what_the_whole_says(self, longer: Reports, name: str) -> None:
        check_pair(longer[name], name)
