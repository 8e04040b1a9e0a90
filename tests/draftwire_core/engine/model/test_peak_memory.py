"""Loading a model takes the memory of its packed weights, whether they are copied, quantised, or blocks of a file."""

import os
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from draftwire_core.engine.kernels.library import library
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.engine.engines import tiny_model
from tests.harness.models.gguf_model import write_gguf
from tests.harness.waiting import LONG_PATIENCE

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux" or library() is None, reason="weights are not packed by compiled code"),
]
_SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 4096}
_SIZES |= {"num_attention_heads": 16, "num_key_value_heads": 16}
_SPARE = 80
"""Megabytes for what is packed at once, for a test weight of `row_range`, and for what the allocator keeps."""

_LOAD = """
import re, sys
from pathlib import Path
from draftwire_core.engine.model.packed_model import PackedModel

def peak(since_now=False):
    if since_now:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before = peak(since_now=True)
model = PackedModel.load(sys.argv[1], slots=256, dtype="bfloat16", weights=sys.argv[2])
held = sum(each.nbytes for each in model.model.buffers())
held += sum(each.nbytes for each in model.model.parameters())
print(peak() - before, held)
"""


def check_peak(place: Path, weights: str) -> None:
    done = processes.run(
        [sys.executable, "-c", _LOAD, str(place), weights],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    taken, held = map(int, done.stdout.split())
    assert taken <= 1.15 * held + _SPARE * 1e6, (taken, held)


def test_the_peak_is_that_of_the_weights(tmp_path: Path) -> None:
    """Of a checkpoint of 120 MB, all of them zeros."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**_SIZES, num_hidden_layers=3))
    model.config.save_pretrained(tmp_path)
    zeros = {name: torch.zeros(weight.shape, dtype=torch.bfloat16) for name, weight in model.named_parameters()}
    save_file(zeros, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_peak(tmp_path, "checkpoint")


@pytest.mark.slow
class TestLarger:
    """Weights of other kinds as well."""

    @pytest.mark.parametrize(("source", "weights"), [("bf16", "checkpoint"), ("bf16", "q4_0"), ("Q8_0", "checkpoint")])
    def test_the_peak_is_that_of_the_weights(self, source: str, weights: str, tmp_path: Path) -> None:
        model = tiny_model("Llama", torch.bfloat16, **_SIZES, num_hidden_layers=8)
        place = tmp_path / "model.gguf"
        if source == "bf16":
            place = tmp_path
            model.save_pretrained(place)
        else:
            write_gguf(place, model.config, model.state_dict(), source)
        check_peak(place, weights)
