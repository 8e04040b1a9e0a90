"""GGUF files as transformers reads them: checkpoints in float32 with the same weights, and what they generate."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.harness.client_packages import python_wheel
from tests.harness.waiting import LONG_PATIENCE

_ACCELERATE = "accelerate==1.15.0"
"""Without it transformers reads no GGUF file."""
_SCRIPT = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, name, folder = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    source, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
"""


def dequantised(file: Path, folder: Path) -> Path:
    """Writes a checkpoint of transformers with a file's weights in float32; returns its folder. Skips the test if PyPI
    cannot be reached."""
    path = os.pathsep.join([str(python_wheel(_ACCELERATE)), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _SCRIPT, str(file.parent), file.name, str(folder)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=2 * LONG_PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@torch.inference_mode()
def greedy_tokens(folder: Path, prompts: Sequence[str], count: int) -> list[list[int]]:
    """Returns the likeliest tokens after each prompt by transformers' own model, one after the other."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        tokens: list[int] = []
        unread, cache = tokenizer(prompt, return_tensors="pt").input_ids, None
        while len(tokens) < count:
            step = model(input_ids=unread, past_key_values=cache, use_cache=True, logits_to_keep=1)
            unread, cache = step.logits[:, -1:].argmax(-1), step.past_key_values
            tokens.append(int(unread))
        found.append(tokens)
    return found
