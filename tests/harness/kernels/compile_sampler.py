"""Compiles the sampler's kernels for GPUs, which need not be there, and prints what is in them as a line of JSON each.

    python -m tests.harness.kernels.compile_sampler

A process of its own, since within tests Triton interprets kernels.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from draftwire_core.engine.sampling.kernel_sampler import OPTIONS, SLICE
from draftwire_core.engine.sampling.triton_kernels.draw import best_of_slices, follow_best
from draftwire_core.engine.sampling.triton_kernels.filters import least_kept
from draftwire_core.engine.sampling.triton_kernels.rank import rank_rows, rank_slices

CAPABILITIES = (80, 90)
DTYPES = ("bf16", "fp32")
ROWS = (16, 64, 1024)
_ANY = ("room", "slices")
"""Numbers of which the compiler is told nothing; all others, and addresses, are multiples of 16 in a service."""
_SCORES = {"scores": "*fp32", "token_ids": "*i32"}
_MASSES = {"tops": "*fp32", "masses": "*fp32"}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, int], capability: int) -> dict[str, object]:
    """Compiles a kernel to a GPU's machine code and tells of its instructions."""
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    aligned = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(types) if name not in _ANY}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=OPTIONS)
    instructions = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.]+)", found.asm["ptx"], re.MULTILINE)
    return {
        "kernel": kernel.__name__,
        "capability": capability,
        "machine_code": len(found.asm["cubin"]),
        "fused": sorted({each for each in instructions if each.startswith("fma.")}),
        "divisions": sorted({each for each in instructions if each.startswith("div.") and ".f" in each}),
        "approximate": sorted({each for each in instructions if "approx" in each or "full" in each}),
        "spilled": sorted({each for each in instructions if ".local" in each}),
    }


def main() -> None:
    """Compiles each kernel in all its variants."""
    for capability in CAPABILITIES:
        for dtype in DTYPES:
            first = {"logits": f"*{dtype}", "row_stride": "i32"}
            draws = {"draws": "*i64", "room": "i32"}
            types = {**first, "vocabulary": "i32", **draws, "least": "*fp32"}
            print(json.dumps(compiled(least_kept, types, {"BLOCK": 4096}, capability)), flush=True)
            types |= _SCORES
            constants = {"SLICE": SLICE, "FILTERED": True}
            print(json.dumps(compiled(best_of_slices, types, constants, capability)), flush=True)
            constants = {"SLICE": SLICE, "WIDTH": 4, "FILTERED": True}
            print(json.dumps(compiled(rank_slices, {**types, **_MASSES}, constants, capability)), flush=True)
            types = {**first, **draws, **_SCORES, **_MASSES, "slices": "i32", "ranked": "*i32"}
            constants = {"SLICES": 128, "RANKED": 512, "WIDTH": 4}
            print(json.dumps(compiled(rank_rows, types, constants, capability)), flush=True)
        for rows in ROWS:
            types = {"draws": "*i64", "room": "i32", **_SCORES, "slices": "i32", "drawn": "*i32"}
            constants = {"ROWS": rows, "SLICES": max(1, 2048 // rows), "ROUNDS": rows.bit_length() - 1}
            print(json.dumps(compiled(follow_best, types, constants, capability)), flush=True)


if __name__ == "__main__":
    main()
