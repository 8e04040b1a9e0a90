"""The chosen drafter is fetched once; what cannot be had is told, and the next one is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from draftwire_core.suggesting.candidate import DrafterCandidate, Kind
from draftwire_core.suggesting.preparing import fetched, prepare
from draftwire_core.suggesting.suggestion import suggest
from draftwire_core.suggesting.target_facts import TargetFacts
from draftwire_tools.packaged_file import FetchError
from tests.harness.checkout import ROOT
from tests.harness.models.hollow_models import hollow_checkpoint
from tests.harness.stand_ins.hub_server import serving_hub

pytestmark = pytest.mark.processes

MB = 1_000_000
QWEN = {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151936}
LARGE = {"lm_head.weight": 16000 * MB}
FACTS = TargetFacts(
    "target", architecture="qwen3", layers=36, hidden=4096, vocabulary=151936, bytes_per_token=16000 * MB
)


def test_the_first_that_can_be_had_is_taken() -> None:
    def fetch(candidate: DrafterCandidate) -> Path:
        if candidate.kind is Kind.EAGLE3:
            raise FetchError("cannot reach the hub")
        return Path("/files of models/small")

    ready = prepare(suggest(FACTS), fetch)
    assert ready.candidate is not None
    assert ready.candidate.name == "Qwen/Qwen3-0.6B"
    assert ready.address == "local:draft?model=/files%20of%20models/small"
    assert ready.notes[0].startswith(
        "RedHatAI/Qwen3-8B-speculator.eagle3 is not to be had: cannot reach the hub (2.1 GB to download, "
    )
    assert "Qwen/Qwen3-0.6B: published" in ready.notes[1]


def test_without_a_network_the_text_is_looked_up_in_itself() -> None:
    def fetch(candidate: DrafterCandidate) -> Path:
        raise FetchError("cannot be reached")

    ready = prepare(suggest(FACTS), fetch)
    assert (ready.candidate, ready.address) == (None, None)
    assert len(ready.notes) == 3
    assert "93 MB to download, 98 MB of memory, licence apache-2.0" in ready.notes[-1]


def test_layers_of_the_checkpoint_are_not_fetched() -> None:
    facts = TargetFacts("target", layers=32, mtp_layers=1, bytes_per_token=16000 * MB)
    ready = prepare(suggest(facts), lambda _: pytest.fail("there is nothing to fetch"))
    assert ready.address == "local:mtp"


def test_the_universal_drafter_has_few_slots() -> None:
    ready = prepare(suggest(FACTS, table=()), lambda _: Path("/cache/small.gguf"))
    assert ready.address == "local:draft?model=/cache/small.gguf&kv_slots=8192"


def test_offline_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    universal = suggest(FACTS, table=()).usable[0]
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE is set"):
        fetched(universal, Console())


def choice(place: Path, model: str, *flags: str, **environment: str) -> dict[str, Any]:
    """What the command's process prints, in a process of its own: the hub's library reads its variables on import."""
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(place / "hub"), "HF_HUB_DISABLE_XET": "1"}
    own |= {"XDG_CACHE_HOME": str(place / "cache"), "PIP_NO_INDEX": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_", "PIP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "draftwire_core.suggesting", "--model", model, *flags],
        env=kept | own | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == ("error" in found), done.stderr
    return found | {"progress": done.stderr.splitlines()}


def test_a_published_head_is_fetched_from_the_hub_once(tmp_path: Path) -> None:
    head = tmp_path / "served" / "RedHatAI" / "Qwen3-8B-speculator.eagle3"
    hollow_checkpoint(head, {"speculators_model_type": "eagle3"}, {"fc.weight": 2})
    target = hollow_checkpoint(tmp_path / "target", QWEN, LARGE)
    with serving_hub(tmp_path / "served") as hub:
        found = choice(tmp_path, str(target), "--fetch", HF_ENDPOINT=hub.url)
    assert found["chosen"] == "RedHatAI/Qwen3-8B-speculator.eagle3"
    assert found["address"].startswith("local:eagle3?model=/")
    assert found["progress"] == [f"fetching {found['chosen']} from the Hugging Face hub, once (2100 MB) ..."]
    again = choice(tmp_path, str(target), "--fetch", HF_HUB_OFFLINE="1")
    assert (again["address"], again["progress"]) == (found["address"], [])


def test_a_hub_that_has_no_drafter_is_told(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    target = hollow_checkpoint(tmp_path / "target", QWEN, LARGE)
    with serving_hub(tmp_path / "served") as hub:
        found = choice(tmp_path, str(target), "--fetch", HF_ENDPOINT=hub.url)
    assert (found["chosen"], found["address"]) == (None, None)
    assert [note.partition(" is not to be had: ")[0] for note in found["notes"]] == [
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "Qwen/Qwen3-0.6B",
        "SmolLM2-135M-Instruct",
    ]


def test_a_target_of_the_hub_is_looked_at_without_its_weights(tmp_path: Path) -> None:
    served = tmp_path / "served" / "lab" / "tuned"
    hollow_checkpoint(served, QWEN, LARGE, "---\nbase_model: Qwen/Qwen3-8B\n---\n")
    with serving_hub(tmp_path / "served") as hub:
        found = choice(tmp_path, "lab/tuned", HF_ENDPOINT=hub.url)
        assert not any("model.safetensors" in each for each in hub.requests)
    assert found["candidates"][0]["name"] == "RedHatAI/Qwen3-8B-speculator.eagle3"
    assert "by the target's name" in found["candidates"][0]["reason"]


def test_the_download_of_a_target_is_told(tmp_path: Path) -> None:
    hollow_checkpoint(tmp_path / "served" / "lab" / "target", QWEN, {"model.embed_tokens.weight": 2})
    with serving_hub(tmp_path / "served") as hub:
        found = choice(tmp_path, "lab/target", "--fetch", HF_ENDPOINT=hub.url)
        looked = choice(tmp_path, "lab/target", HF_ENDPOINT=hub.url)
    assert found["progress"][0] == f"hub download started: repository lab/target, hub {hub.url}"
    stages = [line.partition(" (after ")[0] for line in looked["progress"]]
    assert stages == ["drafters: reading the files of lab/target"]


def test_no_target(tmp_path: Path) -> None:
    assert "no such directory" in choice(tmp_path, "models/none")["error"]
