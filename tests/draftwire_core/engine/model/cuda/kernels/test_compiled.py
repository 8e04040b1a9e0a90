"""The kernels of layers compile to the machine code of GPUs, at the shapes of a model of 8 B parameters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

SMALL = 99 * 1024
"""Bytes that other GPUs since Ampere have."""
SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program can have, on NVIDIA's A100 and H100."""
SPILLED = {"product_kernel": 128, "packed_product_kernel": 2560, "attention_parts_kernel": 44}
"""Bytes that a thread may spill: in prompts' products, where those that are fastest on an H200 do, and in attention in
tiles of 16 queries."""
PRODUCTS = ("product_kernel", "packed_product_kernel", "attention_parts_kernel")


def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "sdk")])
    command = [sys.executable, "-m", "tests.harness.kernels.compiled_layers"]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    kernels = [json.loads(line) for line in ran.stdout.splitlines()]
    names = {
        "product",
        "packed_product",
        "norm",
        "added_norm",
        "keep",
        "rotate",
        "write",
        "attention_parts",
        "attention_sum",
        "take_tokens",
        "move_slots",
        "feed_rows",
        "rank_sum",
    }
    assert {(each["kernel"], each["capability"]) for each in kernels} == {
        (f"{name}_kernel", capability) for name in names for capability in SHARED
    }
    for each in kernels:
        assert each["spilled"] <= SPILLED.get(each["kernel"], 0), each
        # Products take as many stages of loads as there is room for.
        most = SHARED[each["capability"]] if each["kernel"] == "product_kernel" else SMALL
        assert each["shared"] <= most, each
        assert bool(each["products"]) == (each["kernel"] in PRODUCTS), each
        assert each["fused"] == [], each  # a product and a sum that round once, where the compiler sees fit
    # One instruction for all of a model's attention: its rows are not to depend on the size of a pass.
    attention = [each["products"] for each in kernels if each["kernel"] == "attention_parts_kernel"]
    assert attention == [[["mma.sync", "m16n8k16"]]] * len(attention)
