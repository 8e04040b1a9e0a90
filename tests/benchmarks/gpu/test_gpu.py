"""The whole GPU benchmark on a CPU: tiny sizes, with the bundled models unchanged."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import checks, models, parts
from benchmarks.gpu.models import described, grown
from draftwire_core.engine.model.packed_model import PackedModel
from models.inflate import Shape
from tests.harness.checkout import MODELS

pytestmark = pytest.mark.processes

OPTIONS = ["--device", "cpu", "--tokens", "4", "--prompts", "1", "--context", "16", "--runs", "1", "--slots", "512"]
SMALL_SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes the benchmark's sizes small, and the draft model both models."""
    for module, name, few in (
        (parts, "ROWS", (1, 5)),
        (parts, "SEQUENCES", (3,)),
        (checks, "CHUNKS", (9,)),
        (checks, "SAMPLED_ROWS", 8),
        (parts, "MODELS", tmp_path),
    ):
        monkeypatch.setattr(module, name, few)
    for name in ("target", "draft"):
        (tmp_path / name).symlink_to(MODELS / "draft")
    monkeypatch.setitem(models.SHAPES, "llama-8b", SMALL_SHAPE)


def figures_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[dict[str, Any], object]:
    """Runs the benchmark; returns its figures, and the exit status."""
    monkeypatch.setattr(sys, "argv", ["gpu", *OPTIONS, "--vocabulary", "8192", "--json", *options])
    status: object = 0
    try:
        gpu.main()
    except SystemExit as end:
        status = end.code
    about, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert about["benchmark"] == "gpu" and about["machine"]["torch"] == torch.__version__
    return {line["figure"]: line["value"] for line in lines}, status


@pytest.mark.usefixtures("small")
def test_a_known_model_s_shape_at_several_contexts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, status = figures_of(
        monkeypatch, capsys, "--parts", "check,cost", "--shape", "llama-8b", "--context", "16,40,1000"
    )
    assert status == 0 and not any(name.startswith(("draft", "device")) for name in figures)
    assert figures["target"].startswith("0.00 B parameters: 2 layers, hidden 32, 4 heads of 8, 2 key-value heads")
    assert {"target, graphs, context 16: ms of 1 rows", "target, graphs, context 40: ms of 1 rows"} < set(figures)
    assert figures["target, graphs, context 1000: left out"].startswith("512 KV slots (--slots)")


@pytest.mark.usefixtures("small")
def test_a_part_that_fails_or_takes_long_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hangs(*_: object) -> Iterator[dict[str, object]]:
        yield {"before": 1}
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(gpu, "noise_figures", hangs)
    monkeypatch.setattr(models, "SHAPES", {})
    figures, status = figures_of(
        monkeypatch, capsys, "--parts", "noise,check,sampling", "--shape", "llama-8b", "--part-seconds", "5"
    )
    assert status == "failed checks: none; failed parts: noise, check of the target"
    assert figures["before"] == 1 and figures["noise: failed"] == "TimeoutError: more than 5 s"
    assert figures["check of the target: failed"] == "KeyError: 'llama-8b'"
    assert figures["sampling 8 rows of 8192: both ways alike"] is True


@pytest.mark.usefixtures("small")
def test_a_run_that_is_ended_leaves_what_it_has_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def takes_long(*_: object) -> Iterator[dict[str, object]]:
        yield {"found": 2}
        os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` does
        yield {"found too late": 3}

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(gpu, "noise_figures", takes_long)
    results = tmp_path / "results"
    figures, status = figures_of(monkeypatch, capsys, "--parts", "device,noise,sampling", "--results", str(results))
    assert status == "ended by SIGTERM in the part noise"
    assert figures["ended early"] == "by SIGTERM in the part noise" and figures["device: seconds in all"] >= 0
    (file,) = results.glob("*/*.json")
    saved = json.loads(file.read_text())["figures"]
    assert saved == figures and saved["found"] == 2
    assert not any(name.startswith(("found too late", "sampling")) for name in saved)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
class TestAllParts:
    @pytest.mark.usefixtures("small")
    def test_the_whole_benchmark_on_a_cpu(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        figures, status = figures_of(monkeypatch, capsys)
        assert status == 0
        assert figures["device"] == "a CPU: this tries the code, and says nothing of GPUs"
        assert figures["hash has the CPU's bits"] is True
        assert figures["sampling 8 rows of 8192: both ways alike"] is True
        assert figures["target: captured steps have the same bits"] is True
        assert figures["draft, graphs, context 16: ms of 5 rows"]["runs"] == 1
        assert figures["target, no graphs, context 16: ms of 3 sequences"]["median"] > 0
        assert figures["target: prompt of 512 tokens, ms"]["runs"] == 1 and figures["draft: prompt tokens/s"] > 0
        for kind in ("graphs", "no graphs"):
            for temperature in (0, 1):
                assert figures[f"{kind}, T = {temperature}: drafted tokens that are the plain ones"].endswith(" of 4")
                assert figures[f"{kind}, T = {temperature}: speed-up"] > 0
        assert figures["fast: greedy tokens that flip beside 8 others"].startswith("0 of ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", "speed,noise", "--shape", "llama-8b"], "--parts: speed need --shape pair"),
        (["--parts", "noise,nothing"], "no such part: nothing; there are device, noise, "),
    ],
)
def test_parts_that_there_are_not(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *options])
    with pytest.raises(SystemExit):
        gpu.main()
    assert message in capsys.readouterr().err


def test_models_grow_on_the_device() -> None:
    small = grown(MODELS / "draft", None, None, torch.device("cpu"))
    large = grown(MODELS / "draft", 20_000_000, None, torch.device("cpu"))
    assert Shape.of(large.config).layers > Shape.of(small.config).layers or large.config.hidden_size > 128
    ids = torch.tensor([[5, 300, 77, 1200]])
    with torch.inference_mode():
        expected, found = (model.eval()(input_ids=ids).logits.float() for model in (small, large))
    assert (found - expected).abs().max() < 0.05 * expected.std()
    about = described(PackedModel(large, 64))
    assert "bfloat16" in about and about.startswith("0.02 B")


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no CUDA device; the device cpu tries the code"):
        gpu.main()
