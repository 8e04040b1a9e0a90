"""Measures what requests whose drafts are always right cost the requests next to them that have none (law 3).

    python -m benchmarks.laws.neighbours [--drafted 4] [--undrafted 2] [--weights q4_0] [--target-millions 75] [--json]

Plain decoding, the planner with its default `--plain-share` and one that plans for the most tokens in total (0) have an
engine each over the same model. They take turns step by step in one thread, whose processor time is measured. The
drafts are the requests' own outputs, given as predictions. Rates cover the time in which all requests decode. The exit
status is 1 if an output differs.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from typing import get_args

import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.device.choices import TargetWeights
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.planning.pace import PLAIN_SHARE
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

PROMPT_TOKENS = 64
SHARES = {"plain": None, f"plain share {PLAIN_SHARE:g}": PLAIN_SHARE, "most in total": 0.0}
"""Arrangements, by name: the planner's share; None without drafts."""


class Contestant:
    """An engine in one arrangement."""

    def __init__(self, share: float | None, model: PackedModel, cost: StepCost):
        limits = EngineLimits(max_step_rows=1024, plain_share=share or 0.0)  # all prompts are computed in one step
        self._engine = VerificationEngine(model, copy.deepcopy(cost), limits)
        self._drafts = share is not None
        self._alike = AcceptanceModel()
        self._numbers = 0

    def begin(self, prompts: list[list[int]], outputs: list[list[int]], drafted: int) -> None:
        """Starts the requests; the first `drafted` ones have drafts."""
        self._expected = outputs
        self._ids = []
        for prompt, output in zip(prompts, outputs, strict=True):
            self._numbers += 1
            self._ids.append(self._numbers)
            self._engine.add(SequenceSpec(self._numbers, prompt, len(prompt) + len(output), SamplingParams()))
            if self._drafts and len(self._ids) <= drafted:
                source = f"prediction-{self._numbers}"
                self._engine.add_drafter(source, prediction_drafter(output, len(prompt), self._alike))
                self._engine.attach(self._numbers, source, kind="prediction")
        self._outputs: dict[int, list[int]] = {number: [] for number in self._ids}
        self._at_start: list[int] | None = None
        self.rates: list[float] | None = None

    def step(self) -> None:
        """Runs one step. Once a request has ended, `rates` has the tokens of each request in a second."""
        began = time.thread_time()
        self._engine.wait_seconds()
        result = self._engine.step()
        for outcome in result.outcomes:
            self._outputs[outcome.sequence_id] += outcome.tokens
        now = time.thread_time()
        counts = [len(self._outputs[number]) for number in self._ids]
        if self._at_start is None:
            if all(counts):  # all prompts are computed
                self._at_start, self._spent = counts, 0.0
            return
        self._spent += now - began
        if any(count == len(output) for count, output in zip(counts, self._expected, strict=True)):
            self.rates = [(count - first) / self._spent for count, first in zip(counts, self._at_start, strict=True)]

    def end(self) -> bool:
        """Ends what still runs. Returns whether all outputs were right."""
        for number in self._ids:
            self._engine.remove(number)
            if self._drafts:
                self._engine.forget(f"prediction-{number}")
        return all(
            output[: len(self._outputs[number])] == self._outputs[number]
            for number, output in zip(self._ids, self._expected, strict=True)
        )


def main() -> int:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafted", type=int, default=4, help="requests with drafts")
    parser.add_argument("--undrafted", type=int, default=2, help="requests without")
    parser.add_argument("--weights", choices=get_args(TargetWeights), default="checkpoint")
    parser.add_argument("--target-millions", type=float, default=75.0, help="parameters of the target, in millions")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--runs", type=int, default=5)
    add_report_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory = str(inflated(MODELS / "target", args.target_millions))
    model = PackedModel.load(directory, slots=8192, weights=args.weights)
    tokenizer = Tokenizer.load(directory)
    cost = measure_step_cost(model)
    size = args.drafted + args.undrafted
    prompts = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in held_out_prompts(size * 2)]
    alone = VerificationEngine(model, copy.deepcopy(cost), EngineLimits())
    greedy = SamplingParams()
    specs = [SequenceSpec(at, prompt, len(prompt) + args.max_tokens, greedy) for at, prompt in enumerate(prompts)]
    expected = generate_all(alone, specs)
    contestants = {name: Contestant(share, model, cost) for name, share in SHARES.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in SHARES}
    for run in range(args.runs + 1):  # the first one teaches the planners
        first = run % 2 * size
        for each in contestants.values():
            each.begin(prompts[first : first + size], expected[first : first + size], args.drafted)
        while left := [each for each in contestants.values() if each.rates is None]:
            for each in left:
                each.step()
        for name, each in contestants.items():
            if not each.end():
                print(f"run {run}: outputs with {name} differ", file=sys.stderr)
                return 1
            if run and each.rates is not None:
                found[name].append(each.rates)
    rows = {1: cost.seconds(1, 1), size: cost.seconds(size, size), 2 * size: cost.seconds(2 * size, size)}
    figures: dict[str, object] = {
        "requests": f"{args.drafted} with drafts, {args.undrafted} without; {args.max_tokens} tokens, greedy",
        "target": f"{args.target_millions:g} M parameters, weights {args.weights}",
        "a step, ms by rows": ", ".join(f"{count}: {1000 * seconds:.1f}" for count, seconds in rows.items()),
    }
    for name, runs in found.items():
        figures[f"{name}: tokens/s in total"] = Spread.of([sum(rates) for rates in runs])
        if SHARES[name] is None:
            continue
        for who, part in (("drafted", slice(args.drafted)), ("undrafted", slice(args.drafted, None))):
            figures[f"{name}: {who} / plain"] = Spread.ratio(
                [sum(rates[part]) for rates in runs], [sum(rates[part]) for rates in found["plain"]]
            )
        figures[f"{name}: total / plain"] = Spread.ratio(list(map(sum, runs)), list(map(sum, found["plain"])))
    print_report("requests without drafts beside perfect drafts", figures, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
