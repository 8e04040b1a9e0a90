"""The whole GPU benchmark on a CPU: tiny sizes, with the bundled models unchanged."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.models import described, grown
from models.inflate import Shape
from tests.harness.checkout import MODELS

OPTIONS = ["--device", "cpu", "--tokens", "4", "--prompts", "1", "--context", "16", "--runs", "1", "--slots", "512"]


def test_the_whole_benchmark_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *OPTIONS, "--vocabulary", "8192", "--json"])
    for name, few in (("ROWS", (1, 5)), ("CHUNKS", (9,)), ("SAMPLED_ROWS", 8), ("MODELS", tmp_path)):
        monkeypatch.setattr(gpu, name, few)
    for name in ("target", "draft"):
        (tmp_path / name).symlink_to(MODELS / "draft")
    gpu.main()
    figures = json.loads(capsys.readouterr().out)
    assert figures["benchmark"] == "gpu"
    assert figures["device"] == "a CPU: this tries the code, and says nothing of GPUs"
    assert figures["hash has the CPU's bits"] is True
    assert figures["sampling 8 rows of 8192: both ways alike"] is True
    assert figures["target: captured steps have the same bits"] is True
    assert figures["draft, graphs: ms of 5 rows"]["runs"] == 1
    for kind in ("graphs", "no graphs"):
        for temperature in (0, 1):
            assert figures[f"{kind}, T = {temperature}: drafted tokens that are the plain ones"].endswith(" of 4")
            assert figures[f"{kind}, T = {temperature}: speed-up"] > 0
    assert figures["reproducible: greedy tokens that flip beside 8 others"].startswith("0 of ")


def test_models_grow_on_the_device() -> None:
    small = grown(MODELS / "draft", None, None, torch.device("cpu"))
    large = grown(MODELS / "draft", 20_000_000, None, torch.device("cpu"))
    assert Shape.of(large.config).layers > Shape.of(small.config).layers or large.config.hidden_size > 128
    ids = torch.tensor([[5, 300, 77, 1200]])
    with torch.inference_mode():
        expected, found = (model.eval()(input_ids=ids).logits.float() for model in (small, large))
    assert (found - expected).abs().max() < 0.05 * expected.std()
    assert "bfloat16" in described(large) and described(large).startswith("0.02 B")


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no CUDA device; --device cpu tries the code"):
        gpu.main()
