"""Layers on the kernels of GPUs whose inputs are split among ranks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.kernels.rank_sum import add_ranks
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.engine.engines import tiny_model
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.waiting import LONG_PATIENCE

prepare_interpreter()

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


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


def test_a_row_of_a_split_model_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    tiny_model("Llama", num_hidden_layers=1).save_pretrained(tmp_path)
    done = processes.run(
        [sys.executable, "-m", "tests.harness.engine.rank_kernels", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kernels"] == "yes" and report["error"] < 1e-4
    assert report["compared"] > 3 and report["same_bits"]
    assert report["captured"] == 9


def test_who_waits_for_a_pass_notices_that_a_rank_is_lost() -> None:
    done = processes.run(
        [sys.executable, "-m", "tests.harness.engine.lost_rank"],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    (hangs, waited), (killed, _) = json.loads(done.stdout.splitlines()[-1])
    assert hangs.startswith("the exchange with rank 1 of 2 failed: a pass has not ended within 3.") and waited > 3
    assert killed == "rank 1 of 2 has ended; the model is incomplete without it"


@pytest.mark.slow
class TestGraphs:
    """Two ranks that decode with the same graphs."""

    @pytest.fixture(scope="class")
    def graphs(self, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
        """What each of two ranks finds that capture their steps on a pretended GPU."""
        checkpoint, output = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("output")
        tiny_model("Llama", num_hidden_layers=1).save_pretrained(checkpoint)
        done = processes.run(
            [sys.executable, "-m", "tests.harness.engine.rank_graphs", str(checkpoint), str(output)],
            cwd=ROOT,
            env=os.environ | processes.ENVIRONMENT | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            spares=1,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads((output / f"{rank}.json").read_text()) for rank in range(2)]

    def test_ranks_capture_their_steps_together(self, graphs: list[dict[str, Any]]) -> None:
        """A rank whose capture fails leaves the others without graphs, too: theirs would wait for its exchanges."""
        leader, follower = graphs
        assert leader["kernels"] == follower["kernels"] == "yes"
        assert leader["slots"] == follower["slots"] == 130
        assert leader["captured"] == [0, 9, 0] and follower["captured"] == [9, 0]
        assert leader["graphs"] == ["0", "9", "rank 1: NCCL cannot be captured"]
        assert follower["graphs"] == leader["graphs"][1:]

    def test_graphs_change_no_token_of_ranks(self, graphs: list[dict[str, Any]]) -> None:
        """Without graphs, with them, with drafts, and after a capture that failed."""
        plain, *others = graphs[0]["tokens"]
        assert len(others) == 3 and [len(tokens) for tokens in plain.values()] == [5, 5]
        assert all(tokens == plain for tokens in others) and graphs[0]["accepted"] > 0

    def test_a_step_of_a_rank_is_one_graph(self, graphs: list[dict[str, Any]]) -> None:
        """With the exchanges in it. Two launches more keep logits and states from the next pass."""
        leader, follower = graphs
        assert len(leader["counts"]) > 4 and len(follower["counts"]) > len(leader["counts"])
        for count in leader["counts"]:
            assert count == {"copies to the device": 1, "launches": 3, "copies back": 1, "waits": 1}
        for count in follower["counts"]:
            assert count == {"copies to the device": 1, "launches": 3}
