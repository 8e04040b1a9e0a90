"""Measures what `--drafter auto` gains from the first minute: the universal drafter and lookup, with nothing trained.

    python -m benchmarks.real.universal [--targets gemma3,gemma3-2b] [--weights q8_0] [--prompts 20] [--runs 3]
        [--max-tokens 96] [--temperatures 0,0.7] [--batch 1] [--threads N] [--results DIR] [--json]

A verifier starts with `--drafter auto`, which chooses by the target's files: SmolLM2-135M-Instruct, which translates
its guesses to the target's tokens, next to lookup. Three ways take turns, on all cores: *plain*, *lookup* alone, and
*auto*, what a request gets that says nothing. The prompts are those of `python -m benchmarks.real` but for retrieval.

Targets are the real models (`benchmarks/harness/real_files.py`), and the same widened to 2 B parameters
(`models/widen.py`): agreement between drafter and target is that of the small model, the time of a step that of the
large one. --weights is the verifier's, and for widened models only; the others are quantised. For SmolLM2 the drafter
is the target itself, so its widened form shows the most that there is to gain.

Figures are of the answers as they come, and of the same answers up to where they begin to loop (`loops.py`). A rate is
one stream's, after its first tokens; a speed-up is a ratio within a run, or of one answer. The first draft is timed to
the end of the first of many short requests that has a draft token of a drafter with a model.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from benchmarks.harness.inflated_models import widened
from benchmarks.harness.pair_options import add_run_options
from benchmarks.harness.real_files import REAL_MODELS, RealModel
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from benchmarks.real.__main__ import LEAST_TOKENS, tokens_of
from benchmarks.real.loops import before_loop
from benchmarks.real.measurements import Measurements
from benchmarks.real.prompts import TASKS, real_prompts
from benchmarks.real.ways import TEMPERATURES, Asked, Ours, Way
from draftwire import AsyncClient
from draftwire_core.engine.device.choices import TargetWeights
from draftwire_tools.packaged_file import FetchError
from draftwire_tools.serve.auto import AUTO, LOOKUP
from draftwire_tools.small_model import SMOLLM2
from draftwire_tools.turns import Request, turns
from tests.harness.services.service_process import ServiceProcess

KINDS = tuple(task for task in TASKS if task != "retrieval")
"""The kinds of prompts, in the order of the tables."""
_FIRST_TOKENS = 24
"""Tokens of a request that waits for the first draft."""
_PATIENCE = 60.0
"""Seconds after the choice of the drafters after which none is expected to draft any more."""
_SLOTS = 1024
"""KV slots of a request: prompt, answer, and tree."""


@dataclass(frozen=True)
class Target:
    """A target."""

    model: RealModel
    """The published model."""
    millions: float | None = None
    """Parameters that it is widened to, in millions; None leaves it as it is."""

    def fetch(self) -> Path:
        """Returns the path of the target. Raises FetchError."""
        file = self.model.file.fetch()
        return file if self.millions is None else widened(file, self.millions)


TARGETS = {
    "gemma3": Target(REAL_MODELS["Gemma 3"]),
    "gemma3-2b": Target(REAL_MODELS["Gemma 3"], 2000.0),
    "smollm2": Target(REAL_MODELS["SmolLM2"]),
    "smollm2-2b": Target(REAL_MODELS["SmolLM2"], 2000.0),
}
"""The targets by name."""


@dataclass(frozen=True)
class Answer:
    """An answer of one way."""

    way: str
    """The way's name."""
    run: int
    """Number of the run."""
    asked: Asked
    """The request."""
    request: Request
    """What came of it."""


async def measure(name: str, options: argparse.Namespace) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Measures one target; returns its figures and the rows of the table."""
    target = TARGETS[name]
    path = await asyncio.to_thread(target.fetch)
    flags = ["--drafter", AUTO, "--no-prefix-cache", "--kv-slots", str(_SLOTS * max(4, options.batch))]
    if target.millions is not None:
        flags += ["--weights", options.weights]
    with Services(threads=options.threads) as services:
        verifier = services.verifier(path, *flags)
        async with AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=600.0) as client:
            begun = time.perf_counter()
            prompts = [
                (each.task, await tokens_of(client, each, target.model.chats))
                for each in real_prompts(options.prompts)
                if each.task in KINDS
            ]
            ways = [Ours("plain", client, ()), Ours("lookup", client, (LOOKUP,)), Ours("auto", client, None)]
            first = await first_draft(ways[-1], prompts[0][1], verifier, begun)
            found: dict[str, object] = {
                f"{name}: drafters chosen": "; ".join(_event(verifier, "drafters chosen").get("reasons", ())),
                f"{name}: seconds to the first draft of a model": "none came" if first is None else round(first, 1),
            }
            rows: list[dict[str, object]] = []
            for temperature in options.temperatures:
                asked = [
                    Asked(task, tokens, options.max_tokens, temperature, seed)
                    for seed, (task, tokens) in enumerate(prompts)
                ]
                answers = await take_turns(ways, list(groups(asked, options.batch)), options.runs)
                of_them, table = figures(name, temperature, answers)
                found |= of_them
                rows += table
            rested = {_short(event["drafter"]) for event in verifier.events() if event["event"] == "drafter rested"}
            found[f"{name}: drafters that rested"] = ", ".join(sorted(rested)) or "none"
    return found, rows


async def first_draft(auto: Way, prompt: tuple[int, ...], verifier: ServiceProcess, begun: float) -> float | None:
    """Returns the seconds from `begun`, by time.perf_counter, to the end of the first request with a draft token of a
    drafter with a model. None if none is chosen, or none drafts within a minute after the choice."""
    until = None
    while until is None or time.perf_counter() < until:
        request = await auto.run(Asked(KINDS[0], prompt, _FIRST_TOKENS, 0.0, 0))
        if _model_drafted(request):
            return time.perf_counter() - begun
        if _event(verifier, "drafters not chosen"):
            return None
        if until is None and (chosen := _event(verifier, "drafters chosen")):
            if chosen["drafters"] == [LOOKUP]:
                return None
            until = time.perf_counter() + _PATIENCE
    return None


def groups(asked: Sequence[Asked], batch: int) -> Iterator[list[Asked]]:
    """Yields the requests that run at once, `batch` or fewer of one kind."""
    for kind in KINDS:
        of_kind = [each for each in asked if each.task == kind]
        for start in range(0, len(of_kind), batch):
            yield of_kind[start : start + batch]


async def take_turns(ways: Sequence[Way], work: Sequence[list[Asked]], runs: int) -> list[Answer]:
    """Lets the ways take turns on groups of requests; returns all answers."""
    answers: list[Answer] = []
    for turn in turns(ways, work, range(runs)):
        requests = await asyncio.gather(*map(turn.way.run, turn.work))
        answers += [
            Answer(turn.way.name, turn.run, asked, request) for asked, request in zip(turn.work, requests, strict=True)
        ]
        if turn.number == len(work) - 1:
            print(f"run {turn.run}: {turn.way.name} has ended", file=sys.stderr, flush=True)
    return answers


def figures(
    target: str, temperature: float, answers: Sequence[Answer]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Returns the figures of one target at one temperature, and the rows of the table."""
    name = f"{target}, T = {temperature:g}"
    found: dict[str, object] = {}
    rows: list[dict[str, object]] = []
    forms: dict[str, Callable[[Request], Request]] = {"as they come": lambda request: request, "loops cut": before_loop}
    for form, part in forms.items():
        measured = measurements(answers, part)
        if not measured.tasks:
            found[f"{name}, {form}"] = f"no answer has {LEAST_TOKENS} tokens"
            continue
        at = f"{name}, {form}"
        found |= measured.figures(at)
        for task in measured.tasks:
            found[f"{at}, auto, {task}: speed-up over lookup"] = measured.speed_up("auto", task, "lookup")
            for way in ("lookup", "auto"):
                found[f"{at}, {way}, {task}: speed-up of an answer"] = measured.speed_up_of_answers(way, task)
        found[f"{at}, auto: speed-up over lookup, mean of the tasks"] = measured.mean_speed_up("auto", "lookup")
        rows += [{"texts": form, **row} for row in measured.rows(target, temperature)]
    plain = {each.asked.seed: each.request.token_ids for each in answers if each.way == "plain" and not each.run}
    looping = sum(before_loop(each.request) is not each.request for each in answers if each.way == "plain")
    found[f"{name}: share of answers that loop"] = round(looping / sum(each.way == "plain" for each in answers), 3)
    ours = [_model_drafted(each.request) for each in answers if each.way == "auto"]
    found[f"{name}: share of answers with drafts of a model"] = round(sum(ours) / len(ours), 3)
    found[f"{name}: outputs that differ"] = sum(each.request.token_ids != plain[each.asked.seed] for each in answers)
    return found, rows


def measurements(answers: Sequence[Answer], part: Callable[[Request], Request]) -> Measurements:
    """Returns a part of each answer, where it is long enough to be timed."""
    parts = [(each, part(each.request)) for each in answers]
    parts = [(each, kept) for each, kept in parts if len(kept.token_ids) >= LEAST_TOKENS]
    measured = Measurements([kind for kind in KINDS if any(each.asked.task == kind for each, _ in parts)])
    for each, kept in parts:
        measured.add(each.way, each.run, each.asked.task, kept)
    return measured


def _model_drafted(request: Request) -> bool:
    return any(share.draft_tokens for share in request.stats.drafters if share.name != LOOKUP)


def _event(verifier: ServiceProcess, event: str) -> dict[str, Any]:
    return next((each for each in verifier.events() if each["event"] == event), {})


def _short(drafter: str) -> str:
    return "lookup" if drafter == LOOKUP else "model"


def main() -> int:
    """Runs the measurement and prints the figures. Returns 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="gemma3,gemma3-2b", help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--weights", choices=get_args(TargetWeights), default="checkpoint", help="of widened targets")
    parser.add_argument("--temperatures", default=TEMPERATURES, type=_numbers, metavar="T,T", help="0,0.7 by default")
    parser.add_argument("--batch", type=int, default=1, help="requests at once")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="by default one per core")
    add_run_options(parser, max_tokens=96, prompts=20)
    parser.set_defaults(runs=3)
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := [name for name in targets if name not in TARGETS]:
        parser.error(f"--targets: {unknown[0]!r} is not one of {', '.join(TARGETS)}")
    try:
        real_prompts(options.prompts)
        SMOLLM2.fetch()
        for name in targets:
            TARGETS[name].fetch()
    except (ValueError, FetchError) as error:
        parser.error(str(error))
    found: dict[str, object] = {
        "requests": f"{options.prompts} prompts of each kind, at most {options.max_tokens} tokens, {options.batch} at "
        f"once, {options.threads} threads; weights of widened targets: {options.weights}",
    }
    rows: list[dict[str, object]] = []
    for name in targets:
        of_target, table = asyncio.run(measure(name, options))
        found |= of_target
        rows += table
    found["speed-ups"] = rows
    found["outputs that differ"] = sum(
        int(str(count)) for name, count in found.items() if name.endswith(": outputs that differ")
    )
    print_report("universal", found, options)
    return bool(found["outputs that differ"])


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
