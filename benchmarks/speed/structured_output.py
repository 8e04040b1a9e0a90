"""Measures what a form of the output costs a step, and what jump-ahead and drafters gain under it.

    python -m benchmarks.speed.structured_output [--seeds 3] [--schemas 6] [--json]

Only the engine runs, in one process with one thread per pass, in turns with the draft model as in
`draftwire_core/engine/in_process.py`: no services, no event loop. Each schema of the tests' suite (those named in
SCHEMAS) is requested under each seed at temperature 0.8, with and without its form, jump-ahead and draft model. A
step's time is the engine's, including its plan and masks, but neither drafting nor the first step, which computes the
prompt. Outputs that must be equal are compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.grammar import GrammarDrafter
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.logits.grammar import FormKind, Grammar
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

PROMPT = "# The configuration as JSON:\nconfig = "
_DRAFT, _GRAMMAR = "draft", "grammar"
_MOST_TOKENS = 120
_DRAFT_STEPS = 4


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "maxLength": 16}
SCHEMAS: dict[str, dict[str, Any]] = {
    "service": _record(
        {"host": _TEXT, "port": {"type": "integer", "minimum": 1, "maximum": 65535}, "secure": {"type": "boolean"}}
    ),
    "log": _record(
        {
            "level": {"enum": ["debug", "info", "warning", "error"]},
            "message": _TEXT,
            "at": {"type": "string", "format": "date"},
        }
    ),
    "list": {"type": "array", "items": _record({"name": _TEXT, "value": {"type": "boolean"}}), "maxItems": 3},
    "any of": {"anyOf": [_record({"file": _TEXT, "mode": {"enum": ["r", "w"]}}), _record({"url": _TEXT})]},
    "flags": _record({f"enable_{name}": {"type": "boolean"} for name in ("cache", "trace", "retry", "colour")}),
    "free": {"type": "object", "maxProperties": 4, "additionalProperties": _TEXT},
}


@dataclass(frozen=True, slots=True)
class Case:
    """The features that a case combines."""

    form: bool
    jump_ahead: bool = False
    draft: bool = False

    def __str__(self) -> str:
        parts = ["form" if self.form else "no form", "jump-ahead" * self.jump_ahead, "draft model" * self.draft]
        return ", ".join(part for part in parts if part)


CASES = (
    Case(False),
    Case(True),
    Case(True, jump_ahead=True),
    Case(False, draft=True),
    Case(True, draft=True),
    Case(True, jump_ahead=True, draft=True),
)


@dataclass(slots=True)
class Count:
    """Sums over runs."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """Returns the figures."""
        return {
            "tokens a step": round(self.tokens / self.steps, 3),
            "ms a step": round(1e3 * self.seconds / self.steps, 3),
            "ms a token": round(1e3 * self.seconds / self.tokens, 3),
            "acceptance": {
                source: f"{self.accepted.get(source, 0)} of {drafted}"
                for source, drafted in sorted(self.drafted.items())
            },
        }


class Bench:
    """The model pair and the compiled forms."""

    def __init__(self) -> None:
        target = PackedModel.load(str(MODELS / "target"), slots=1024)
        self.tokenizer = Tokenizer.load(str(MODELS / "target"))
        self.eos = frozenset(target.eos_token_ids)
        self.engine = VerificationEngine(target, measure_step_cost(target), EngineLimits())
        draft = PackedModel.load(str(MODELS / "draft"), slots=1024, row_exact=False)
        self.drafter = DraftModelDrafter(draft, TreeGrowth(measure_step_cost(draft)))
        self.compiler = GrammarCompiler(self.tokenizer.token_table, target.vocab_size)
        self._number = 0

    def run(self, schema: dict[str, Any], seed: int, case: Case, count: Count) -> list[int]:
        """Generates one output; returns its tokens."""
        self._number += 1
        key = self._number
        engine = self.engine
        tokens = self.tokenizer.encode(PROMPT)
        longest = len(tokens) + _MOST_TOKENS
        sampling = SamplingParams(temperature=0.8, seed=seed)
        form = self.compiler.form(Grammar(FormKind.JSON_SCHEMA, json.dumps(schema)), self.eos) if case.form else None
        editors = () if form is None else (form,)
        engine.add(SequenceSpec(key, tokens, longest, sampling, self.eos, editors=editors, form=form))
        source = f"{_GRAMMAR}#{key}"
        if form is not None and case.jump_ahead:
            engine.add_drafter(source, GrammarDrafter(form))
            engine.attach(key, source, kind=_GRAMMAR)
        if case.draft:
            engine.attach(key, _DRAFT)
            self.drafter.open(
                key, DraftSpec(tokens, sampling, engine.limits.max_tree_nodes, longest, engine.model.vocab_size)
            )
        output = [token for each in self._steps(key, case, count, len(tokens)) for token in each]
        self.drafter.close(key)
        engine.forget(source)
        return output

    def _steps(self, key: int, case: Case, count: Count, prompt: int) -> Iterator[list[int]]:
        engine = self.engine
        while engine.running:
            for _ in range(_DRAFT_STEPS * case.draft):
                for proposal in self.drafter.grow().proposals.values():
                    engine.propose(key, _DRAFT, proposal)
            engine.wait_seconds()
            result = engine.step()
            for outcome in result.outcomes:
                if outcome.committed_length - len(outcome.tokens) > prompt:
                    count.seconds += result.seconds
                    count.steps += 1
                    count.tokens += len(outcome.tokens)
                for drafted_by, number in outcome.drafted.items():
                    name = drafted_by.partition("#")[0]
                    count.drafted[name] = count.drafted.get(name, 0) + number
                for drafted_by in outcome.sources:
                    if drafted_by is not None:
                        name = drafted_by.partition("#")[0]
                        count.accepted[name] = count.accepted.get(name, 0) + 1
                if case.draft and outcome.finish is None:
                    self.drafter.commit(key, outcome.committed_length, outcome.tokens)
                yield outcome.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--schemas", type=int, default=len(SCHEMAS))
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench()
    schemas = list(SCHEMAS.values())[: options.schemas]
    for case in CASES:
        bench.run(schemas[0], 0, case, Count())  # warms up
    counts = {case: Count() for case in CASES}
    differing = 0
    for seed in range(options.seeds):
        for schema in schemas:
            outputs = {case: bench.run(schema, seed, case, counts[case]) for case in CASES}
            differing += len({tuple(output) for case, output in outputs.items() if case.form}) - 1
            differing += len({tuple(output) for case, output in outputs.items() if not case.form}) - 1
    found = {str(case): count.told() for case, count in counts.items()}
    save({"differing": differing, "cases": found}, options)
    if options.json:
        print(json.dumps({"machine": machine(), "differing": differing, "cases": found}, indent=1))
        return
    print(machine())
    print(f"outputs that differ: {differing}")
    for name, figures in found.items():
        print(f"{name:32s} {figures}")


if __name__ == "__main__":
    main()
