"""Lists where the GPU's time goes in engine steps: kernels by device time, and their number a step.

    python -m benchmarks.gpu.kernel_profile [--shape llama-8b] [--context 512] [--steps 5]

Profiles plain steps of one greedy request with torch's profiler: with CUDA graphs, then without. Without CUDA (--device
cpu) operations of the CPU are listed instead, to try the code.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.models import LAYERS, SHAPES, grown, packed, shaped
from benchmarks.gpu.parts import PAIR
from benchmarks.gpu.steps import synchronize
from speculative_engine.engine.engine_limits import EngineLimits
from speculative_engine.engine.sequence import SequenceSpec
from speculative_engine.engine.verification_engine import VerificationEngine
from speculative_engine.model.cuda.captured_steps import CapturedSteps
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.sampling.sampling_params import SamplingParams
from tests.harness.checkout import MODELS

_LISTED = 25


def profile_steps(model: PackedModel, context: int, steps: int) -> profile:
    """Profiles plain steps of one request after a prompt of `context` tokens."""
    engine = VerificationEngine(model, StepCost([1], [1.0]), EngineLimits())
    prompt = [3 + index % 97 for index in range(context)]
    engine.add(SequenceSpec(0, prompt, context + 2 * steps + 2, SamplingParams(temperature=0.0)))
    outputs = 0
    while outputs < steps:  # the prompt, and a few steps to warm up
        outputs += sum(len(outcome.tokens) for outcome in engine.step().outcomes)
    synchronize(model.device)
    activities = [ProfilerActivity.CPU]
    if model.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        for _ in range(steps):
            engine.step()
        synchronize(model.device)
    return found


def kernel_count(found: profile) -> int:
    """Number of kernels and copies that ran on the device."""
    return sum(event.device_type != torch.autograd.DeviceType.CPU for event in found.events())


@torch.inference_mode()
def main() -> None:
    """Profiles with graphs and without, and prints both tables."""
    options = read_options()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device; --device cpu tries the code")
    if options.shape == PAIR:
        made = grown(MODELS / "target", 8_000_000_000 if cuda else None, 32 if cuda else None, device)
    else:
        made = shaped(options.shape, device)
    slots = options.context + 1024
    model = packed(made, slots, "target", options.layers)
    assert isinstance(model.steps, CapturedSteps)
    print(f"layer kernels: {model.layer_kernels}", flush=True)
    for kind in ("graphs", "no graphs"):
        model.steps.replays = kind == "graphs"
        if model.steps.replays:
            model.capture_graphs()
        found = profile_steps(model, options.context, options.steps)
        print(f"{kind}: {kernel_count(found) / options.steps:.0f} kernels and copies a step", flush=True)
        order = "self_device_time_total" if cuda else "self_cpu_time_total"
        print(found.key_averages().table(sort_by=order, row_limit=_LISTED, max_name_column_width=60), flush=True)


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kernel_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the code")
    parser.add_argument("--shape", choices=(PAIR, *SHAPES), default="llama-8b", help="which target")
    parser.add_argument("--layers", choices=LAYERS, default=LAYERS[0], help="which layers, if the kernels run here")
    parser.add_argument("--context", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=5, help="steps that are profiled")
    return parser.parse_args()


if __name__ == "__main__":
    main()
