"""How many tokens per second does the engine give at 1, 4, 16 and 64 sequences, plainly and with the draft model?

    python -m benchmarks.gpu.questions.03_throughput [--device cpu]

The bundled pair inflated to 7.9 B and 1.0 B, both in one process, with CUDA graphs, greedy. Time counts once every
sequence has its first token.

Expected on an H200: plainly 165, 640, 2300 and 6000 tokens/s: passes of 5.2, 5.4, 5.7 and 8.2 ms, and 0.9 to 2.5 ms of
the host; drafted 330 at 1, 900 at 4, and no less than plainly at 16 and 64, since the planner drafts only if it pays.
All outputs are the plain ones.

If 64 sequences give less than 5000: the host is in the way, and two steps in flight come next. If drafting costs speed
at 16 or 64: the cost model (`measure_step_cost`) does not know passes of several sequences. If an output differs: law 1
is broken, and question 01 says where to look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import LAYERS, grown, packed
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

SEQUENCES, FEW_SEQUENCES = (1, 4, 16, 64), (1, 2)
TOKENS, FEW_TOKENS = 64, 6
_SOURCE = "draft"


def together(
    target: PackedModel, cost: StepCost, draft: PackedModel | None, prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[list[list[int]], float]:
    """Generates from all prompts at once; returns the outputs, and tokens per second once all have begun."""
    engine = VerificationEngine(target, cost, EngineLimits(max_sequences=len(prompts), max_step_rows=target.most_rows))
    if draft is not None:
        engine.add_drafter(_SOURCE, LocalModelDrafter(draft, min(1.0, draft.parameters / target.parameters)))
    outputs: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0)
        engine.add(SequenceSpec(number, prompt, len(prompt) + tokens, sampling))
        if draft is not None:
            engine.attach(number, _SOURCE)
    began, before, ended = 0.0, 0, 0.0
    while engine.running or engine.waiting:
        for outcome in engine.step().outcomes:
            outputs[outcome.sequence_id] += outcome.tokens
        ended = time.perf_counter()
        if not began and all(outputs):
            began, before = ended, sum(map(len, outputs))
    return outputs, (sum(map(len, outputs)) - before) / (ended - began)


def find(device: torch.device) -> Figures:
    """Tokens per second by number of sequences."""
    cuda = device.type == "cuda"
    sequences, tokens = (SEQUENCES, TOKENS) if cuda else (FEW_SEQUENCES, FEW_TOKENS)
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    prompts = [tokenizer.encode(text)[:256] for text in held_out_prompts(sequences[-1])]
    slots = len(prompts) * (320 + tokens)
    if cuda:
        large = grown(MODELS / "target", 8_000_000_000, 32, device)
        small = grown(MODELS / "draft", 1_000_000_000, 16, device)
    else:
        large, small = (grown(MODELS / "draft", None, None, device) for _ in range(2))
    target, draft = PackedModel(large, slots, "target"), packed(small, slots, "draft", LAYERS[0])
    for model in (target, draft):
        model.capture_graphs()
    cost = measure_step_cost(target)
    figures: dict[str, object] = {"layer kernels": target.layer_kernels}
    same = True
    for count in sequences:
        for _ in range(2 if cuda else 1):  # the first one warms up
            plain, plain_speed = together(target, cost, None, prompts[:count], tokens)
            drafted, drafted_speed = together(target, cost, draft, prompts[:count], tokens)
        same = same and plain == drafted
        figures[f"{count} sequences: plain tokens/s"] = round(plain_speed, 1)
        figures[f"{count} sequences: drafted tokens/s"] = round(drafted_speed, 1)
    return {"drafted outputs are the plain ones": same, **figures}


if __name__ == "__main__":
    print_answer(__doc__, find)
