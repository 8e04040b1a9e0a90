"""Compares a target split between ranks with the whole of it: step times, tokens/s, bytes exchanged.

    python -m benchmarks.speed.tensor_parallel [--ranks 1 2] [--dtype float32 bfloat16] [--millions 120] [--json]

Each case runs in one process per rank, with one thread each. Steps are plain ones of several numbers of rows after a
context of 128 tokens; the texts are 4 held-out prompts side by side, decoded plainly.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.loading.rank_processes import RankProcesses
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

_SEQUENCES, _TOKENS = 4, 64
_ROWS = (1, 8, 32)
_CASE = "case"


def measure(model_directory: str, ranks: int, dtype: str) -> dict[str, Any] | None:
    """Measures one case; returns None at ranks other than rank 0."""
    torch.set_num_threads(1)
    processes = RankProcesses.open(ranks, device="cpu", timeout_seconds=60) if ranks > 1 else None
    group = processes.ranks if processes is not None else None
    model = PackedModel.load(model_directory, slots=4096, dtype=dtype, ranks=group)
    report = run_self_test(model)
    if group is not None and group.rank:
        group.follow(model)
        return None
    if group is not None:
        group.lead()
    cost = measure_step_cost(model)
    tokenizer = Tokenizer.load(model_directory)
    prompts = [tokenizer.encode(text) for text in held_out_prompts(_SEQUENCES)]
    engine = VerificationEngine(model, cost, EngineLimits(prefix_cache=False))

    def texts() -> list[list[int]]:
        return generate_all(
            engine,
            [
                SequenceSpec(number, tokens, len(tokens) + _TOKENS, SamplingParams(temperature=0.0))
                for number, tokens in enumerate(prompts)
            ],
        )

    texts()
    before = _counts(group)
    started = time.perf_counter()
    found = texts()
    seconds = time.perf_counter() - started
    steps, announced, exchanged, talking = (now - then for now, then in zip(_counts(group), before, strict=True))
    if processes is not None:
        processes.close()
    return {
        "ranks": ranks,
        "dtype": dtype,
        "bit_exact": report.bit_exact,
        "parameters": model.parameters,
        "step_ms": {rows: round(1e3 * cost.seconds(rows), 2) for rows in _ROWS},
        "tokens_per_second": round(_SEQUENCES * _TOKENS / seconds, 1),
        "announced_bytes_a_step": round(announced / steps) if steps else 0,
        "exchanged_bytes_a_step": round(exchanged / steps) if steps else 0,
        "exchange_ms_a_step": round(1e3 * talking / steps, 2) if steps else 0.0,
        "texts": found,
    }


def _counts(group: Any) -> tuple[float, ...]:
    if group is None:
        return 0, 0, 0, 0.0
    return group.passes, group.announced_bytes, group.exchanged_bytes, group.exchange_seconds


def main() -> None:
    """Runs the cases and prints them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", choices=["bfloat16", "float32"], default=["float32", "bfloat16"])
    parser.add_argument(
        "--millions",
        type=float,
        default=120.0,
        help="parameters of the inflated target, in millions; 0 for the bundled one as it is",
    )
    add_report_options(parser)
    options = parser.parse_args()
    model = str(inflated(MODELS / "target", options.millions) if options.millions else MODELS / "target")
    cases: list[dict[str, Any]] = []
    for dtype in options.dtype:
        for ranks in options.ranks:
            command = [sys.executable, "-m", "benchmarks.speed.tensor_parallel", _CASE, model, str(ranks), dtype]
            done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
            cases.append(json.loads(done.stdout.splitlines()[-1]))
    for case in cases:
        whole = next(each for each in cases if each["dtype"] == case["dtype"])
        texts, others = case.pop("texts") if case is not whole else case["texts"], whole["texts"]
        case["texts_as_the_first"] = sum(text == other for text, other in zip(texts, others, strict=True))
    for case in cases:
        case.pop("texts", None)
    about = machine() | {"threads": "1 a rank", "texts": f"{_SEQUENCES} x {_TOKENS} tokens"}
    save({"cases": cases}, options)
    if options.json:
        json.dump({"benchmark": "tensor_parallel", "machine": about, "cases": cases}, sys.stdout, indent=2)
        print()
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for case in cases:
        print(case)


if __name__ == "__main__":
    if sys.argv[1:2] == [_CASE]:
        found = measure(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        if found is not None:
            print(json.dumps(found))
    else:
        main()
