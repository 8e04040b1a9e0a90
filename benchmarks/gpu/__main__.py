"""Checks and times both models on one GPU: correctness, memory bandwidth, step costs, speed-up.

    python -m benchmarks.gpu [--tokens 128] [--prompts 8] [--json]
    python -m benchmarks.gpu --device cpu --tokens 8 --prompts 1 --context 64 --runs 2

Needs the repository, torch and transformers, and no network. The models are made on the device: the bundled pair,
inflated to about 8 B and 1 B parameters with unchanged outputs, so that the draft agrees with the target as often as in
the small pair. They have the vocabulary of the small pair, 4096 tokens; sampling from a large vocabulary is measured
separately.

On a CPU the same code runs over the bundled pair as it is, to try the code. Those figures say nothing about GPUs.

The exit status is 1 if the device's noise, sampling or captured steps differ from what they must equal.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence

import torch

from benchmarks.gpu.models import described, grown
from benchmarks.gpu.steps import (
    Generator,
    copied_bytes_per_second,
    logits_in_chunks,
    rows_batch,
    seconds,
    step_seconds,
)
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import Spread, add_report_options, print_report
from models.inflate import read_count
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.loading.step_timing import measure_step_cost
from speculative_engine.model.cuda.bucketed_steps import BucketedSteps
from speculative_engine.model.cuda.step_buckets import StepBuckets
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.sampling.coupled_sampler import sample
from speculative_engine.sampling.device_sampler import draw
from speculative_engine.sampling.gumbel import block_maxima
from speculative_engine.sampling.philox import philox4x32
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CHUNKS = (8, 64)
"""Batch sizes at which a row's logits are compared with those that it has alone."""
SAMPLED_ROWS, LARGE_VOCABULARY = 64, 131072

Figures = dict[str, object]


def device_figures(device: torch.device, runs: int) -> Figures:
    """Describes the device and measures its memory bandwidth."""
    figures: Figures = {"device": "a CPU: this tries the code, and says nothing of GPUs"}
    size = 1 << 26
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        figures = {
            "device": f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {about.multi_processor_count} processors, "
            f"CUDA {torch.version.cuda}",
        }
        if tool := shutil.which("nvidia-smi"):
            asked = [
                tool,
                "--query-gpu=driver_version,power.limit,clocks.max.sm,clocks.max.mem",
                "--format=csv,noheader",
            ]
            answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
            figures["driver, power limit, highest clocks"] = answer.stdout.strip() or answer.stderr.strip()
        size = 1 << 31
    figures["memory GB/s, copying"] = round(copied_bytes_per_second(device, size, runs) / 1e9, 1)
    return figures


def noise_figures(device: torch.device) -> Figures:
    """Compares the device's hash with the CPU's bits, and its noise with the CPU's values."""
    counters = torch.arange(1 << 16)
    words = (counters, counters * 7919 & 0xFFFFFFFF, counters * 0, counters * 0 + 1)
    key = (counters * 104729 & 0xFFFFFFFF, counters * 0 + 3)
    there = philox4x32(tuple(each.to(device) for each in words), tuple(each.to(device) for each in key))
    equal = all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(there, philox4x32(words, key), strict=True))
    seeds, positions = torch.arange(64) * 7919, torch.arange(64)
    host = block_maxima(seeds, positions, 2048)
    differ = (block_maxima(seeds.to(device), positions.to(device), 2048).cpu() != host).float().mean().item()
    return {"hash has the CPU's bits": equal, "noise values that differ in a bit": f"{differ:.3g} of {host.numel()}"}


def sampling_figures(device: torch.device, vocabulary: int, runs: int) -> Figures:
    """Times drawing without synchronising against drawing with it, from a vocabulary of the given size."""
    generator = torch.Generator(device).manual_seed(1)
    logits = 4 * torch.randn(SAMPLED_ROWS, vocabulary, device=device, generator=generator)
    batch = SamplingBatch.build(
        [SamplingParams(temperature=row % 4 / 2, seed=row) for row in range(SAMPLED_ROWS)], range(SAMPLED_ROWS), device
    )
    expected = sample(logits, batch).token_ids
    token_ids, settled = draw(logits, batch)
    name = f"sampling {SAMPLED_ROWS} rows of {vocabulary}"
    return {
        f"{name}: both ways alike": torch.equal(token_ids[settled], expected[settled]),
        f"{name}: settled without asking": round(settled.float().mean().item(), 4),
        f"{name}: ms": milliseconds(seconds(lambda: draw(logits, batch), device, runs)),
        f"{name}: ms, asking": milliseconds(seconds(lambda: sample(logits, batch), device, runs)),
    }


def cost_figures(name: str, model: PackedModel, context: int, runs: int, kind: str) -> Figures:
    """Measures c(n), and the cost of n rows relative to one row."""
    times = step_seconds(model, context, ROWS, runs)
    one = statistics.median(times[1])
    return {f"{name}, {kind}: ms of {rows} rows": milliseconds(times[rows]) for rows in ROWS} | {
        f"{name}, {kind}: c(n) / c(1)": ", ".join(f"{statistics.median(times[rows]) / one:.2f}" for rows in ROWS)
    }


def flip_figures(name: str, model: PackedModel, texts: Sequence[Sequence[int]]) -> Figures:
    """Returns how often a row in a batch differs from the same row alone."""
    figures: Figures = {}
    alone = [logits_in_chunks(model, text, 1) for text in texts]
    count = sum(map(len, texts))
    for chunk in CHUNKS:
        beside = [logits_in_chunks(model, text, chunk) for text in texts]
        pairs = list(zip(beside, alone, strict=True))
        bits = sum(int((ours != theirs).any(1).sum()) for ours, theirs in pairs)
        flips = sum(int((ours.argmax(1) != theirs.argmax(1)).sum()) for ours, theirs in pairs)
        figures[f"{name}: rows that differ in a bit beside {chunk - 1} others"] = f"{bits} of {count}"
        figures[f"{name}: greedy tokens that flip beside {chunk - 1} others"] = f"{flips} of {count}"
    return figures


def captured_alike(model: PackedModel, context: int) -> bool:
    """Captures the model's steps; returns whether they then give the same bits as before."""
    slots = model.pool.take(context + 16)
    batches = [rows_batch(model, slots, context, range(rows)) for rows in (1, 3, 16)]
    # A batch of 16 runs first, so that the batches after it find the same leftovers in the cache, before and after.
    eager = [model.forward(batch).clone() for batch in reversed(batches)]
    model.capture_graphs()
    alike = all(
        torch.equal(model.forward(batch), before) for batch, before in zip(reversed(batches), eager, strict=True)
    )
    model.pool.give_back(slots)
    return alike


def speed_figures(
    target: PackedModel, draft: PackedModel, prompts: Sequence[Sequence[int]], options: argparse.Namespace, roof: float
) -> Figures:
    """Measures plain decoding against the roof, and with the draft; with graphs, then without."""
    figures: Figures = {}
    size = sum(parameter.nbytes for parameter in target.model.parameters())
    for kind in ("graphs", "no graphs"):
        if kind == "no graphs":
            for model in (target, draft):
                assert isinstance(model.steps, BucketedSteps)
                model.steps.drop()
        cost = measure_step_cost(target)
        for temperature in (0.0, 1.0):
            plainly, drafting = Generator(target, cost), Generator(target, cost, draft)
            for generator in (plainly, drafting):
                generator.run(prompts[:1], options.tokens, temperature)
            plain, drafted = (each.run(prompts, options.tokens, temperature) for each in (plainly, drafting))
            passes = statistics.median(step_seconds(target, options.context, (1,), options.runs)[1])
            name = f"{kind}, T = {temperature:g}"
            same = sum(
                ours == theirs
                for mine, other in zip(plain.tokens, drafted.tokens, strict=True)
                for ours, theirs in zip(mine, other, strict=True)
            )
            figures |= {
                f"{name}: plain tokens/s": round(plain.tokens_per_second, 1),
                f"{name}: plain, share of the roof": round(size * plain.tokens_per_second / roof, 3),
                f"{name}: plain, ms a step beside a pass": round(1e3 * (plain.step_seconds - passes), 3),
                f"{name}: drafted tokens/s": round(drafted.tokens_per_second, 1),
                f"{name}: speed-up": round(drafted.tokens_per_second / plain.tokens_per_second, 3),
                f"{name}: accepted of drafted": f"{drafted.accepted} of {drafted.drafted}",
                f"{name}: tokens a step": round(drafted.decoded / drafted.steps, 2),
                f"{name}: drafted tokens that are the plain ones": f"{same} of {sum(map(len, plain.tokens))}",
            }
    return figures


def milliseconds(times: Sequence[float]) -> Spread:
    """Converts seconds to a spread in milliseconds."""
    return Spread.of([1e3 * each for each in times])


@torch.inference_mode()
def main() -> None:
    """Runs the checks and measurements, and prints the figures."""
    options = read_options()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device; --device cpu tries the code")
    buckets = StepBuckets.within(options.slots)
    sizes = (options.target_parameters, 32) if cuda else (None, None)
    draft_sizes = (options.draft_parameters, 16) if cuda else (None, None)
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    prompts = [tokenizer.encode(text) for text in held_out_prompts(options.prompts)]

    figures = device_figures(device, options.runs) | noise_figures(device)
    roof = float(figures["memory GB/s, copying"]) * 1e9  # type: ignore[arg-type]
    for vocabulary in (4096, options.vocabulary):
        figures |= sampling_figures(device, vocabulary, options.runs)
    models: dict[str, PackedModel] = {}
    for name, source, (parameters, layers) in (("target", "target", sizes), ("draft", "draft", draft_sizes)):
        model = grown(MODELS / source, parameters, layers, device)
        figures[name] = described(model)
        models[name] = packed = PackedModel(model, options.slots, name, row_exact=False, buckets=buckets)
        report = run_self_test(packed)
        figures[f"{name}: error against the library's forward"] = (
            f"{report.error:.3g} of {report.tolerance:.3g} spreads"
        )
        figures |= cost_figures(name, packed, options.context, options.runs, "no graphs")
        figures[f"{name}: captured steps have the same bits"] = captured_alike(packed, options.context)
        figures[f"{name}: graphs"] = packed.graphs
        figures |= cost_figures(name, packed, options.context, options.runs, "graphs")
    target, draft = models["target"], models["draft"]
    texts = [
        [*prompt, *output]
        for prompt, output in zip(
            prompts, Generator(target, StepCost([1], [1.0])).run(prompts, options.tokens, 0.0).tokens, strict=True
        )
    ]
    figures |= flip_figures("fast", target, texts)
    figures |= speed_figures(target, draft, prompts, options, roof)
    if cuda:
        figures["GPU memory, GiB at most"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 1)
    models.clear()
    del target, draft, packed, model
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    again = PackedModel(
        grown(MODELS / "target", *sizes, device), options.slots, "target", row_exact=False, reproducible=True
    )
    figures["reproducible: self-test found the same bits in any company"] = run_self_test(again).bit_exact
    figures |= flip_figures("reproducible", again, texts)
    figures |= cost_figures("target", again, options.context, options.runs, "reproducible")
    print_report("gpu", figures, options)
    if wrong := [name for name, value in figures.items() if value is False and not name.startswith("reproducible")]:
        sys.exit(f"failed checks: {', '.join(wrong)}")


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the code")
    parser.add_argument(
        "--target-parameters",
        type=read_count,
        default=8_000_000_000,
        help="parameters of the target on a GPU, for example 8B",
    )
    parser.add_argument(
        "--draft-parameters",
        type=read_count,
        default=1_000_000_000,
        help="parameters of the draft model on a GPU, for example 1B",
    )
    parser.add_argument("--prompts", type=int, default=8, help="number of held-out prompts")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated from each prompt")
    parser.add_argument("--context", type=int, default=512, help="context length at which steps are timed")
    parser.add_argument("--slots", type=int, default=4096, help="KV slots of each model")
    parser.add_argument("--vocabulary", type=int, default=LARGE_VOCABULARY, help="large vocabulary to sample from")
    parser.add_argument("--runs", type=int, default=20, help="repetitions of each timing")
    add_report_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
