"""Measures what drafters in the target's own thread cost and gain where a step is short.

    python -m benchmarks.speed.local_drafters [--methods medusa,eagle3 --heads DIR --eagle3 DIR] [--temperature 0.8]
        [--batch 4]

Each method, and plain decoding twice, has its own engine over the same model. They take turns step by step in one
thread. The comparison uses that thread's processor time for whole requests (planning, drafting, the pass, the walk), so
other work on the machine does not count. Requests before the first run are not counted; drafters keep their accounts
from then on. The exit status is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass

import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.methods import METHODS
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

PROMPT_TOKENS = 64
PREDICTION_TOKENS = 300
PLAIN, CONTROL, PREDICTION = "plain", "plain again", "wrong prediction"
WARM_RUNS = 2


@dataclass(frozen=True)
class Run:
    """The requests of one run: seconds of the thread, steps, verified draft tokens, and outputs."""

    seconds: float
    steps: int
    draft_tokens: int
    drafting: float
    """Seconds that drafting took."""
    outputs: list[list[int]]

    @property
    def tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(map(len, self.outputs))


class Contestant:
    """An engine with one drafter, or none."""

    def __init__(self, name: str, model: PackedModel, cost: StepCost, options: dict[str, object], wrong: list[int]):
        self.name = name
        self._engine = VerificationEngine(model, copy.deepcopy(cost), EngineLimits())
        self._attached = name not in (PLAIN, CONTROL)
        self._wrong = wrong if name == PREDICTION else None
        self._alike = AcceptanceModel()
        self._requests = 0
        if self._attached and self._wrong is None:
            method = METHODS[name]
            self._engine.add_drafter(name, method.make(method.options(**options), model, True))

    def begin(self, prompts: list[list[int]], tokens: int, temperature: float, run: int) -> None:
        """Starts the requests of a run."""
        self._ids = []
        for at, prompt in enumerate(prompts):
            request = self._requests
            self._requests += 1
            self._ids.append(request)
            sampling = SamplingParams(temperature=temperature, seed=100 * run + at)
            self._engine.add(SequenceSpec(request, prompt, len(prompt) + tokens, sampling))
            if self._wrong is not None:
                source = f"prediction-{request}"
                self._engine.add_drafter(source, prediction_drafter(self._wrong, len(prompt), self._alike))
                self._engine.attach(request, source, kind="prediction")
            elif self._attached:
                self._engine.attach(request, self.name)
        self._outputs: dict[int, list[int]] = {request: [] for request in self._ids}
        self._seconds = self._drafting = 0.0
        self._before = self._engine.record.steps, self._engine.record.draft_tokens

    @property
    def running(self) -> bool:
        """Whether any request of the run is unfinished."""
        return self._engine.running > 0

    def step(self) -> None:
        """Runs one step."""
        started = time.thread_time()
        self._engine.wait_seconds()
        result = self._engine.step()
        self._seconds += time.thread_time() - started
        self._drafting += sum(result.drafting.values())
        for outcome in result.outcomes:
            self._outputs[outcome.sequence_id] += outcome.tokens

    def finish(self) -> Run:
        """Ends the run."""
        if self._wrong is not None:
            for request in self._ids:
                self._engine.forget(f"prediction-{request}")
        steps, draft_tokens = self._before
        record = self._engine.record
        drafted = record.draft_tokens - draft_tokens
        return Run(self._seconds, record.steps - steps, drafted, self._drafting, [*self._outputs.values()])


def turns(contestants: list[Contestant]) -> None:
    """Runs all contestants step by step, in turns; a different one begins each time."""
    round_ = 0
    while any(each.running for each in contestants):
        for at in range(len(contestants)):
            contestant = contestants[(at + round_) % len(contestants)]
            if contestant.running:
                contestant.step()
        round_ += 1


def main() -> int:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--methods",
        default=f"ngram,suffix,lookahead,early_exit,{PREDICTION}",
        help="drafters to compare, comma-separated; 'medusa' needs --heads, 'eagle3' needs --eagle3",
    )
    parser.add_argument("--heads", help="directory of Medusa heads for the bundled target")
    parser.add_argument("--eagle3", help="directory of an EAGLE-3 drafter for the bundled target")
    parser.add_argument("--draft", default=str(MODELS / "draft"), help="draft model of 'draft'")
    parser.add_argument("--layers", type=int, default=2, help="layers of early exit")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="number of concurrent requests")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--runs", type=int, default=7)
    add_report_options(parser)
    args = parser.parse_args()
    methods = args.methods.split(",")
    for method, needed in (("medusa", "heads"), ("eagle3", "eagle3")):
        if method in methods and not getattr(args, needed):
            parser.error(f"--methods {method} needs --{needed}")
    torch.set_num_threads(1)
    directory = str(MODELS / "target")
    model, tokenizer = PackedModel.load(directory, slots=8192), Tokenizer.load(directory)
    cost = measure_step_cost(model)
    texts = held_out_prompts(max(8, args.batch * (args.runs + WARM_RUNS)))
    prompts = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in texts]
    wrong = tokenizer.encode(" ".join(texts[-4:]))[:PREDICTION_TOKENS]
    options: dict[str, dict[str, object]] = {
        "medusa": {"heads": args.heads},
        "eagle3": {"model": args.eagle3},
        "draft": {"model": args.draft},
        "early_exit": {"layers": args.layers},
    }
    contestants = [Contestant(name, model, cost, options.get(name, {}), wrong) for name in (PLAIN, CONTROL, *methods)]
    found: dict[str, list[Run]] = {each.name: [] for each in contestants}
    for run in range(WARM_RUNS + args.runs):
        first = run * args.batch
        for each in contestants:
            mine = [prompts[(first + at) % len(prompts)] for at in range(args.batch)]
            each.begin(mine, args.max_tokens, args.temperature, run)
        turns(contestants)
        ended = {each.name: each.finish() for each in contestants}
        for name, result in ended.items():
            if result.outputs != ended[PLAIN].outputs:
                print(f"run {run}: outputs with {name} differ", file=sys.stderr)
                return 1
            if run >= WARM_RUNS:
                found[name].append(result)
    plain = found[PLAIN]
    figures: dict[str, object] = {
        "requests at once, temperature": f"{args.batch}, {args.temperature:g}",
        "a plain step, ms": Spread.of([1000 * run.seconds / run.steps for run in plain]),
    }
    for name in (CONTROL, *methods):
        runs = found[name]
        figures[f"{name}: speed over plain's"] = Spread.ratio(
            [run.seconds for run in plain], [run.seconds for run in runs]
        )
        whole = sum(run.seconds for run in plain) / sum(run.seconds for run in runs)
        steps = sum(run.steps for run in runs) / sum(run.steps for run in plain)
        drafted = sum(run.draft_tokens for run in runs)
        figures[f"{name}: of all runs; its steps; draft tokens"] = f"{whole:.3f}; {steps:.3f} of plain's; {drafted}"
        if name != CONTROL:
            figures[f"{name}: tokens a request and step"] = Spread.of(
                [run.tokens / run.steps / args.batch for run in runs]
            )
            figures[f"{name}: drafting a step, ms"] = Spread.of([1000 * run.drafting / run.steps for run in runs])
    print_report("drafters in the target's thread, by its processor time", figures, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
