"""Lists where the GPU's time goes in engine steps: kernels by device time, their number a step, and the time of a step.

    python -m benchmarks.gpu.kernel_profile [--shape llama-8b] [--context 512] [--steps 5]

Profiles steps of one greedy request with torch's profiler: plain ones with CUDA graphs, then without; of the inflated
pair (--shape pair) also steps with the draft model in the verifier. What a step takes beyond the time of its kernels is
the host's. Without CUDA (--device cpu) operations of the CPU are listed instead, to try the code.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import usable_device
from benchmarks.gpu.models import LAYERS, SHAPES, grown, packed, shaped
from benchmarks.gpu.parts import PAIR
from benchmarks.gpu.steps import synchronize
from benchmarks.harness.held_out import held_out_prompts
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

_LISTED = 25
_WARM_UP = 5
"""Tokens before steps are measured."""
_MOST_DRAFTED = 16
"""Tokens that a step drafts at most, for the length of a request."""
_SOURCE = "draft"


@dataclass(frozen=True)
class Profile:
    """Some steps under the profiler, and as many without it."""

    found: profile
    step_seconds: float
    """Median of the steps without the profiler."""


def profile_steps(model: PackedModel, context: int, steps: int, draft: PackedModel | None = None) -> Profile:
    """Profiles steps of one request after a prompt of `context` tokens: plain ones, or with a draft model."""
    cost = StepCost([1], [1.0]) if draft is None else measure_step_cost(model)
    engine = VerificationEngine(model, cost, EngineLimits())
    prompt = [3 + index % 97 for index in range(context)]
    tokens = 2 * steps + _WARM_UP
    if draft is not None:
        tokens *= 1 + _MOST_DRAFTED
        text = Tokenizer.load(str(MODELS / "target")).encode(held_out_prompts(1)[0])  # the draft model can guess it
        prompt = (text * -(-context // len(text)))[:context]
    engine.add(SequenceSpec(0, prompt, context + tokens, SamplingParams(temperature=0.0)))
    if draft is not None:
        engine.add_drafter(_SOURCE, LocalModelDrafter(draft, min(1.0, draft.parameters / model.parameters)))
        engine.attach(0, _SOURCE)
    outputs = 0
    while outputs < _WARM_UP:  # the prompt, and a few steps to warm up
        outputs += sum(len(outcome.tokens) for outcome in engine.step().outcomes)
    times = []
    for _ in range(steps):
        synchronize(model.device)
        started = time.perf_counter()
        engine.step()
        synchronize(model.device)
        times.append(time.perf_counter() - started)
    activities = [ProfilerActivity.CPU]
    if model.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        for _ in range(steps):
            engine.step()
        synchronize(model.device)
    engine.remove(0)  # whose slots the next profile of the model needs
    return Profile(found, statistics.median(times))


def device_seconds(found: profile) -> float:
    """Seconds of all kernels and copies that ran on the device."""
    on_device = [each for each in found.events() if each.device_type != torch.autograd.DeviceType.CPU]
    return 1e-6 * float(sum(each.self_device_time_total for each in on_device))


def kernel_count(found: profile) -> int:
    """Number of kernels and copies that ran on the device."""
    return sum(event.device_type != torch.autograd.DeviceType.CPU for event in found.events())


@torch.inference_mode()
def main() -> None:
    """Profiles with graphs and without, and prints both tables."""
    options = read_options()
    device = usable_device(options.device)
    cuda = device.type == "cuda"
    if options.shape == PAIR:
        made = grown(MODELS / "target", 8_000_000_000 if cuda else None, 32 if cuda else None, device)
    else:
        made = shaped(options.shape, device)
    slots = options.context + 1024
    model = packed(made, slots, "target", options.layers)
    print(f"layer kernels: {model.layer_kernels}", flush=True)
    kinds: dict[str, PackedModel | None] = {"graphs": None, "no graphs": None}
    if options.shape == PAIR:
        small = grown(MODELS / "draft", 1_000_000_000 if cuda else None, 16 if cuda else None, device)
        draft = packed(small, slots, "draft", options.layers)
        draft.capture_graphs()
        kinds = {"graphs": None, "graphs, drafted": draft, "no graphs": None}
    model.capture_graphs()
    for kind, drafts in kinds.items():
        if model.steps is not None:
            model.steps.replays = kind != "no graphs"
        run = profile_steps(model, options.context, options.steps, drafts)
        print(f"{kind}: {kernel_count(run.found) / options.steps:.0f} kernels and copies a step", flush=True)
        kernels = 1e3 * device_seconds(run.found) / options.steps
        print(f"{kind}: {1e3 * run.step_seconds:.3f} ms a step, its kernels and copies {kernels:.3f}", flush=True)
        order = "self_device_time_total" if cuda else "self_cpu_time_total"
        print(run.found.key_averages().table(sort_by=order, row_limit=_LISTED, max_name_column_width=60), flush=True)


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
