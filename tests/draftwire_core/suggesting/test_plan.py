"""``draftwire plan``: yes or no, with sizes, speeds and what they assume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwire.cli.failure import Failure
from draftwire_core.suggesting import device_roofs
from draftwire_core.suggesting.plan import plan
from tests.harness.models.hollow_models import hollow_checkpoint

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "_name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
}
TENSORS = {
    "model.embed_tokens.weight": 1_050_000_000,
    "lm_head.weight": 1_050_000_000,
    "model.layers.0.mlp": 13_960_000_000,
}


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(hollow_checkpoint(tmp_path / "target", LLAMA, TENSORS))


def planned(target: str, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    plan(target, **{"gpu": "H100", **options})
    return capsys.readouterr().out


def test_requests_that_fit(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(target, capsys, requests=16, context=4096)
    lines = [line.split() for line in out.splitlines()]
    rows = {line[0]: line for line in lines if line}
    assert rows["weights"][1:3] == ["16.1", "GB"]
    assert rows["drafter"][3] == "meta-llama/Llama-3.2-1B-Instruct"
    assert rows["plain"][2] == "tokens/s"
    assert f"--kv-slots {16 * 4160}" in out
    assert float(rows["drafted"][1]) > float(rows["plain"][1]) > 100
    assert "reckoned, not measured" in out
    assert "(0.88 of the nominal 3350 GB/s)" in out
    assert out.splitlines()[-1].startswith("yes: 16 requests of 4096 tokens fit, with ")


def test_requests_that_do_not(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failure, match=r"no: 500 requests of 4096 tokens need .* suffices: at most \d+ req"):
        plan(target, gpu="H100", requests=500)
    assert "--max-sequences 500" in capsys.readouterr().out


def test_json(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(planned(target, capsys, requests=16, as_json=True))
    assert found["fits"] is True
    assert found["remedies"] == []
    assert found["device"]["name"] == "H100"
    assert found["slot"] == 131072
    with pytest.raises(Failure):
        planned(target, capsys, requests=500, as_json=True)
    refused = json.loads(capsys.readouterr().out)
    assert refused["fits"] is False
    assert refused["remedies"]


def test_a_cpu(target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_roofs, "_TRIAL_BYTES", 1 << 22)
    options = {"gpu": None, "cpu": True, "requests": 1, "context": 1024, "memory": 64}
    assert "(measured here by reading)" in planned(target, capsys, **options)
    given = planned(target, capsys, **options, bandwidth=40)
    assert "of 40 GB/s (given)" in given
    assert "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3" in given, "heads read a target on a CPU"


def test_a_known_gpu_may_be_changed(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(planned(target, capsys, memory=40, bandwidth=1000, as_json=True, requests=1))
    assert (found["device"]["memory"], found["device"]["bandwidth"]) == (40 * 2**30, 1e12)


@pytest.mark.parametrize("options", [{"gpu": None}, {"gpu": "H100", "cpu": True}])
def test_one_device(target: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--gpu, --cpu: give exactly one of them"):
        plan(target, **options)


def test_no_such_model() -> None:
    with pytest.raises(Failure, match="no such directory"):
        plan("models/none", gpu="H100")


def test_progress_is_a_line_a_stage(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_roofs, "_TRIAL_BYTES", 1 << 22)
    plan(target, cpu=True, requests=1, context=64, memory=64)
    told = [line.partition(" (after ")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["planning: measuring the memory bandwidth", f"planning: reading the files of {target}"]
