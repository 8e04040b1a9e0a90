"""Layers on the kernels of GPUs whose inputs are split among ranks."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from speculative_engine.model.cuda.kernels.rank_sum import add_ranks
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.engine.engines import tiny_model
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_added_in_the_order_of_ranks(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = (torch.randn(5, 7, 300, generator=generator) * 100).to(dtype)
    bias, residual = torch.randn(300, generator=generator).to(dtype), torch.randn(7, 300, generator=generator)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    assert torch.equal(add_ranks(parts, None, None), total.to(dtype))
    expected = total + bias.float() + residual
    assert add_ranks(parts, bias, residual) is residual and torch.equal(residual, expected)


@pytest.mark.timeout(300)
def test_a_row_of_a_split_model_has_the_same_bits_in_any_company(tmp_path: Path) -> None:
    tiny_model("Llama", num_hidden_layers=1).save_pretrained(tmp_path)
    done = processes.run(
        [sys.executable, "-m", "tests.harness.engine.rank_kernels", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kernels"] == "yes" and report["error"] < 1e-4
    assert report["compared"] > 3 and report["same_bits"]
    assert report["graphs"] == "the exchanges of ranks are not captured"
