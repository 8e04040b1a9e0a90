"""Measures how many tokens a verification commits with drafters that know the target, whatever drafting costs.

    python -m benchmarks.speed.draft_quality --draft DIR --heads DIR --eagle3 DIR --mtp-like DIR --dflash DIR
        [--temperatures 0,0.8,1]

Requests run one at a time, in the bundled target's process. Verifying is counted as free up to `--nodes` nodes, so each
drafter drafts at every step for as long as it finds likely nodes: the figures compare what drafters know, and not what
they gain beside a target of this size (`local_drafters` does that). Drafting is the thread's processor time for the
drafter alone. The exit status is 1 if outputs differ from those of plain decoding.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.loading.methods import METHODS
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

PROMPT_TOKENS = 96
EAGLE, MEDUSA = "local:eagle3", "local:medusa"
WARM_REQUESTS = 2
"""Requests before the first that is counted; drafters learn their acceptance from them."""


class Request(NamedTuple):
    """The result of one request."""

    output: list[int]
    steps: int
    drafted: int
    drafting: float
    """Processor seconds."""


class FreeSteps(StepCost):
    """Steps that take a second, whatever they verify and however long they really take: next to that, drafting is
    free."""

    def __init__(self) -> None:
        super().__init__([1, 64], [1.0, 1.0])

    def observe(self, rows: int, seconds: float, seen: int = 0, sequences: int = 1) -> None:
        """Does nothing."""


class Drafted:
    """An engine in which a drafter drafts at every step."""

    def __init__(self, label: str, name: str, options: dict[str, Any], model: PackedModel, nodes: int):
        self.name = label
        self._engine = VerificationEngine(model, FreeSteps(), EngineLimits(max_tree_nodes=nodes))
        method = METHODS[name]
        self._drafter = method.make(method.options(**options), model, False)
        self._engine.add_drafter(self.name, self._drafter)
        self._seconds = 0.0
        inner = self._drafter.grow

        def timed() -> object:
            started = time.thread_time()
            growth = inner()
            self._seconds += time.thread_time() - started
            return growth

        self._drafter.grow = timed  # type: ignore[method-assign,assignment]

    def run(self, number: int, prompt: list[int], tokens: int, sampling: SamplingParams) -> Request:
        """Runs a request to its end."""
        self._engine.add(SequenceSpec(number, prompt, len(prompt) + tokens, sampling))
        self._engine.attach(number, self.name)
        output: list[int] = []
        steps = drafted = 0
        self._seconds = 0.0
        while self._engine.running:
            for outcome in self._engine.step().outcomes:
                output += outcome.tokens
                drafted += sum(outcome.drafted.values())
                steps += 1
        return Request(output, steps, drafted, self._seconds)


def main() -> int:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", help="directory of a draft model")
    parser.add_argument("--heads", help="directory of Medusa heads")
    parser.add_argument("--eagle3", help="directory of an EAGLE-3 drafter")
    parser.add_argument("--mtp-like", help="directory of an EAGLE-3 drafter that reads the last layer's output alone")
    parser.add_argument("--dflash", help="directory of a DFlash drafter, which drafts trees, and chains for comparison")
    parser.add_argument("--temperatures", default="0,0.8,1")
    parser.add_argument("--nodes", type=int, default=16, help="most nodes of a tree")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--requests", type=int, default=12)
    add_report_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory = str(MODELS / "target")
    model, tokenizer = PackedModel.load(directory, slots=4096), Tokenizer.load(directory)
    prompts = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in held_out_prompts(WARM_REQUESTS + args.requests)]
    given = [
        (label, name, {option: value} | further)
        for label, name, option, value, further in (
            ("local:draft", "draft", "model", args.draft, {}),
            (MEDUSA, "medusa", "heads", args.heads, {}),
            (EAGLE, "eagle3", "model", args.eagle3, {}),
            ("local:eagle3 like an MTP layer", "eagle3", "model", args.mtp_like, {}),
            ("local:dflash", "dflash", "model", args.dflash, {}),
            ("local:dflash, chains", "dflash", "model", args.dflash, {"width": 1}),
        )
        if value
    ]
    figures: dict[str, object] = {}
    for temperature in map(float, args.temperatures.split(",")):
        plain = VerificationEngine(model, FreeSteps(), EngineLimits())
        drafters = [Drafted(*each, model, args.nodes) for each in given]
        found: dict[str, list[Request]] = {each.name: [] for each in drafters}
        for number, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=temperature, seed=number)
            [expected] = generate_all(plain, [SequenceSpec(number, prompt, len(prompt) + args.max_tokens, sampling)])
            for each in drafters:
                request = each.run(number, prompt, args.max_tokens, sampling)
                if request.output != expected:
                    print(f"request {number}: outputs with {each.name} differ", file=sys.stderr)
                    return 1
                if number >= WARM_REQUESTS:
                    found[each.name].append(request)
        for name, requests in found.items():
            label = f"T = {temperature:g}, {name}"
            figures[f"{label}: tokens a step"] = Spread.of([len(each.output) / each.steps for each in requests])
            accepted = sum(len(each.output) - each.steps for each in requests)
            figures[f"{label}: accepted of verified"] = f"{accepted / sum(each.drafted for each in requests):.3f}"
            figures[f"{label}: drafting a step, ms"] = Spread.of(
                [1000 * each.drafting / each.steps for each in requests]
            )
        steps = {name: [len(each.output) / each.steps for each in found.get(name, [])] for name in (EAGLE, MEDUSA)}
        if all(steps.values()):
            figures[f"T = {temperature:g}, {EAGLE} / {MEDUSA}: tokens a step"] = Spread.ratio(
                steps[EAGLE], steps[MEDUSA]
            )
    print_report("drafters that know the target: tokens a verification", figures, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
