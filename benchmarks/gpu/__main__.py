"""Checks and times both models on one GPU: correctness, memory bandwidth, step costs, speed-up.

    python -m benchmarks.gpu [--tokens 128] [--prompts 8] [--json]
    python -m benchmarks.gpu --parts check,cost --shape llama-8b --context 512,4000,16000 --slots 40000
    python -m benchmarks.gpu --device cpu --tokens 8 --prompts 1 --context 64 --runs 2

Needs the repository, torch and transformers, and no network. The models are made on the device: the bundled pair,
inflated to about 8 B and 1 B parameters with unchanged outputs, so that the draft agrees with the target as often as in
the small pair. They have the vocabulary of the small pair, 4096 tokens, and keys and values twice as large as those of
Llama 3.1 8B. --shape llama-8b has that model's shape, with random weights and without a draft.

Every figure is printed as soon as it is there, with --json as a line of its own. A part that fails, or takes longer
than --part-seconds, does not end the others.

On a CPU the same code runs over the bundled pair as it is, to try the code. Those figures say nothing about GPUs.

The exit status is 1 if a part failed, or if the device's noise, sampling or captured steps differ from what they must
equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial

import torch

from benchmarks.gpu.checks import device_figures, noise_figures, sampling_figures
from benchmarks.gpu.device import usable_device
from benchmarks.gpu.figure_log import FigureLog, Figures
from benchmarks.gpu.models import LAYERS, SHAPES
from benchmarks.gpu.parts import PAIR, ModelParts
from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options
from models.inflate import read_count

PARTS = ("device", "noise", "sampling", "check", "cost", "flips", "speed")
_OF_A_PAIR = {"flips", "speed"}
"""Parts that need a text, or a draft."""
_MAY_DIFFER = ("target: same bits", "draft: same bits")
"""Beginnings of the names of figures whose value False is a finding, not a fault."""
LARGE_VOCABULARY = 131_072


@torch.inference_mode()
def main() -> None:
    """Runs the parts and prints their figures."""
    options = read_options()
    device = usable_device(options.device)
    log = FigureLog(options.json)
    about = machine()
    print(json.dumps({"benchmark": "gpu", "machine": about}) if options.json else f"gpu\n  {about}", flush=True)
    with log.saved(options):
        for name, work in works(options, device, log):
            log.run(name, options.part_seconds, work)
        if device.type == "cuda":
            log.add({"GPU memory, GiB at most": round(torch.cuda.max_memory_allocated(device) / 2**30, 1)})
    wrong = [name for name, value in log.figures.items() if value is False and not name.startswith(_MAY_DIFFER)]
    if wrong or log.failed:
        sys.exit(f"failed checks: {', '.join(wrong) or 'none'}; failed parts: {', '.join(log.failed) or 'none'}")


def works(
    options: argparse.Namespace, device: torch.device, log: FigureLog
) -> Iterable[tuple[str, Callable[[], Iterable[Figures]]]]:
    """Yields the chosen parts, each a name and what runs it."""
    models = ModelParts(options, device)

    def speed(kind: str) -> Iterable[Figures]:
        copied = log.figures.get("memory GB/s, copying")
        if not isinstance(copied, float):
            raise LookupError("the part speed needs the memory bandwidth that the part device measures")
        return models.speed(kind, 1e9 * copied)

    all_works: dict[str, dict[str, Callable[[], Iterable[Figures]]]] = {
        "device": {"device": partial(device_figures, device, options.runs)},
        "noise": {"noise": partial(noise_figures, device)},
        "sampling": {
            f"sampling from {size}": partial(sampling_figures, device, size, options.runs)
            for size in (4096, options.vocabulary)
        },
        "check": {f"check of the {name}": partial(models.check, name) for name in models.names},
        "cost": {f"cost of the {name}": partial(models.cost, name) for name in models.names},
        "flips": {"flips": models.flips},
        "speed": {f"speed, {kind}": partial(speed, kind) for kind in ("graphs", "no graphs")},
    }
    for part in options.parts:
        yield from all_works[part].items()


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the code")
    parser.add_argument("--parts", type=_parts, help=f"some of {','.join(PARTS)}; by default all that the shape has")
    parser.add_argument("--part-seconds", type=float, default=300.0, help="longest time of a part")
    parser.add_argument(
        "--shape", choices=(PAIR, *SHAPES), default=PAIR, help="which target; only the pair has a draft"
    )
    parser.add_argument("--layers", choices=LAYERS, default=LAYERS[0], help="which layers, if the kernels run here")
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
    parser.add_argument("--context", type=_counts, default=[512], help="context lengths at which steps are timed")
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="length of the prompt whose reading is timed")
    parser.add_argument("--slots", type=int, default=4096, help="KV slots of each model")
    parser.add_argument("--vocabulary", type=int, default=LARGE_VOCABULARY, help="large vocabulary to sample from")
    parser.add_argument("--runs", type=int, default=20, help="repetitions of each timing")
    add_report_options(parser)
    options = parser.parse_args()
    lacking = set() if options.shape == PAIR else _OF_A_PAIR
    if options.parts is None:
        options.parts = [part for part in PARTS if part not in lacking]
    if impossible := sorted(lacking & set(options.parts)):
        parser.error(f"--parts: {', '.join(impossible)} need --shape {PAIR}")
    return options


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return parts


def _counts(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
