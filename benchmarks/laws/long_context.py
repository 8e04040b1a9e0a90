"""Compares speed and first token next to drafters with plain decoding in long contexts (law 3).

    python -m benchmarks.laws.long_context [--contexts 1024,8192,32768] [--drafters model,local:draft,local:ngram]
        [--target-millions 400 --draft-millions 25] [--runs 3] [--json]

The target is the bundled one with its rotary positions stretched (YaRN) to a context of 34,816 tokens, in its own
size unless --target-millions is given: in a long context, attention takes the time that weights take elsewhere. Its
text is thereby worse than in the context of its training, and the same for all. The draft model keeps its own context
of 2,048 tokens, and reads a window of a longer text.

- model: the draft model as a drafter service on the drafters' core;
- local:draft: the same in the verifier's thread;
- local:ngram: a lookup in the verifier's thread.

Prompts are the held-out ones, joined and repeated to a context's length, without a cache of prefixes. All are decoded
greedily, one at a time; prompt and output together have the context's length. With --control plain decoding takes part
twice more: as it is, where the difference is the noise of a row, and beside an unrelated program that multiplies small
matrices on the drafters' core, where the difference is what this machine's cores take from each other. The exit status
is 1 if an output differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.arrangements import Arrangement, Comparison, Measured, measure, measure_and_report, run_batch
from benchmarks.harness.held_out import held_out_prompts, texts_of
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_run_options, cores, counts
from benchmarks.harness.services import Services, started
from draftwire import AsyncClient, Speculation
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch
from tests.harness.checkout import MODELS

CONTEXT = 17 * 2048
PLAIN, CONTROL, BESIDE = "plain", "plain again", "plain beside another program"
MODEL = "model"
GOAL, FIRST_GOAL = 0.97, 1.05
_TREE_ROOM = 512
_START_SECONDS = 120.0
_REQUEST_SECONDS = 3600.0  # a prompt of 32,768 tokens takes an inflated target more than ten minutes
_NEIGHBOUR = """
import os, sys, torch
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
torch.set_num_threads(1)
left, right = torch.randn(64, 512, dtype=torch.bfloat16), torch.randn(512, 512, dtype=torch.bfloat16)
print("running", flush=True)
while True:
    left @ right
"""


@dataclass(frozen=True)
class BesideNeighbour(Arrangement):
    """An arrangement beside an unrelated program."""

    cores: tuple[int, ...] = ()
    """The program's."""

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Batch:
        """Generates for all prompts while the program runs."""
        command = [sys.executable, "-c", _NEIGHBOUR, ",".join(map(str, self.cores))]
        neighbour = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert neighbour.stdout is not None
            async with asyncio.timeout(_START_SECONDS):
                if not await neighbour.stdout.readline():
                    raise RuntimeError("the program beside plain decoding did not start")
            return await super().run(prompts, max_tokens)
        finally:
            if neighbour.returncode is None:
                neighbour.kill()
            await neighbour.wait()


def stretched(model: Path, place: Path) -> Path:
    """Writes the model with a long context to a directory, and returns it."""
    made = place / f"{model.name}-long"
    shutil.copytree(model, made)
    config = json.loads((made / "config.json").read_text())
    trained = config["max_position_embeddings"]
    config["rope_parameters"] |= {
        "rope_type": "yarn",
        "factor": CONTEXT / trained,
        "original_max_position_embeddings": trained,
    }
    config["max_position_embeddings"] = CONTEXT
    (made / "config.json").write_text(json.dumps(config))
    return made


async def run(options: argparse.Namespace, services: Services) -> Measured:
    """Runs the comparison."""
    flags = ("--kv-slots", str(CONTEXT + _TREE_ROOM), "--no-prefix-cache")
    with tempfile.TemporaryDirectory() as place:
        target = stretched(sized("target", options.target_millions), Path(place))
        (address,) = await started([lambda: services.verifier(target, *flags, cores=options.verifier_cores)])
        return await compare(address, options, services)


async def compare(address: str, options: argparse.Namespace, services: Services) -> Measured:
    """Measures the drafters of a verifier."""
    async with AsyncClient(address, timeout=_REQUEST_SECONDS) as client:
        draft = sized("draft", options.draft_millions)
        for name in options.drafters:
            where = f"{name}?model={draft}" if name == "local:draft" else name
            if name == MODEL:
                (where,) = await started([partial(services.drafter, draft, cores=options.drafter_cores)])
            await client.drafters.attach(where, label(name))
        tokens = [token for text in held_out_prompts(64) for token in await client.tokenize(text)]
        for name in (None, *options.drafters):  # what is done once, and what the first drafts teach
            speculation = Speculation(enabled=False) if name is None else Speculation(drafter=label(name))
            for text in texts_of(tokens, len(options.contexts), 2, 256):
                await run_batch(client, [text], {"max_tokens": options.max_tokens, "temperature": 0.0}, speculation)
        comparisons = []
        for number, context in enumerate(options.contexts):
            plain = row(context, PLAIN)
            arrangements = [Arrangement(plain, client, plain)]
            arrangements += [
                Arrangement(row(context, name), client, plain, Speculation(drafter=label(name)))
                for name in options.drafters
            ]
            if options.control:
                arrangements.append(Arrangement(row(context, CONTROL), client, plain))
                beside = BesideNeighbour(row(context, BESIDE), client, plain, cores=tuple(options.drafter_cores))
                arrangements.append(beside)
            texts = texts_of(tokens, number, options.prompts, context - options.max_tokens)
            comparisons.append(Comparison(arrangements, [[text] for text in texts], options.max_tokens))
        return await measure(comparisons, options.runs, warm_up=False, verbose=options.verbose)


def sized(model: str, millions: float | None) -> Path:
    """Returns a bundled model of a size in millions of parameters; None for its own."""
    own = MODELS / model
    return own if millions is None else inflated(own, millions)


def label(name: str) -> str:
    """Returns a drafter's name in the pool."""
    return name.removeprefix("local:")


def row(context: int, name: str) -> str:
    """Returns the name of an arrangement."""
    return f"context {context}, {name}"


def first_token(measured: Measured, name: str, over: str) -> Spread:
    """Returns one arrangement's time to the first token over another's, for each run."""

    def seconds(each: str) -> list[float]:
        return [
            sum(stream.first_token_seconds for batch in run for stream in batch.requests)
            for run in measured.batches[each]
        ]

    return Spread.ratio(seconds(name), seconds(over))


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    target, draft = options.target_millions, options.draft_millions
    size = "in its own size" if target is None else f"inflated: target {target:g} M, draft {draft:g} M parameters"
    found: dict[str, object] = {
        "pair": f"bundled, {size}, the target stretched to a context of {CONTEXT:,} tokens, the draft model with "
        "2,048, bfloat16, 1 thread each",
        "cores": f"verifying on {options.verifier_cores}, drafting on {options.drafter_cores}, the client on any",
        "requests": f"{options.prompts} texts a context, one at a time, the last {options.max_tokens} tokens generated",
    }
    slow, late = [], []
    for context in options.contexts:
        plain = row(context, PLAIN)
        found[f"{plain}, tokens/s"] = measured.rate(plain)
        firsts = [
            stream.first_token_seconds for run in measured.batches[plain] for batch in run for stream in batch.requests
        ]
        found[f"{plain}, first token, s"] = Spread.of(firsts)
        for name in [*options.drafters, *([CONTROL, BESIDE] if options.control else [])]:
            each = row(context, name)
            rate, first = measured.ratio(each, plain), first_token(measured, each, plain)
            found[f"{each} / plain"] = rate
            found[f"{each} / plain, first token"] = first
            if name in (CONTROL, BESIDE):
                continue
            slow += [each] if rate.median < GOAL else []
            late += [each] if first.median > FIRST_GOAL else []
            found[f"{each}, accepted"] = measured.acceptance_rate(each)
            found[f"{each}, speculation"] = (
                f"{measured.acceptance_length(each):.2f} tokens and "
                f"{measured.nodes_per_step(each):.2f} draft tokens a step"
            )
    found[f"rows below {GOAL:g} of plain"] = ", ".join(slow) or "none"
    found[f"rows with a first token later than {FIRST_GOAL:g} of plain"] = ", ".join(late) or "none"
    if target is not None:  # figures of another size have names of their own
        found = {f"{target:g} M, {name}" if name.startswith("context") else name: each for name, each in found.items()}
    return found | measured.figures()


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=counts, default=[1024, 8192, 32768], help="tokens, comma-separated")
    parser.add_argument(
        "--drafters",
        type=lambda text: text.split(","),
        default=[MODEL, "local:draft", "local:ngram"],
        help="drafters to measure, comma-separated",
    )
    parser.add_argument("--target-millions", type=float, help="inflate the target to so many million parameters")
    parser.add_argument("--draft-millions", type=float, help="the same for the draft model")
    parser.add_argument(
        "--control", action="store_true", help="measure plain decoding again, also beside an unrelated program"
    )
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    parser.add_argument("--drafter-cores", type=cores, default=[1])
    add_run_options(parser, prompts=1, max_tokens=128)
    options = parser.parse_args()
    if max(options.contexts) > CONTEXT or min(options.contexts) <= options.max_tokens:
        parser.error(f"--contexts: must be above --max-tokens and at most {CONTEXT}")
    if (options.target_millions is None) != (options.draft_millions is None):
        parser.error("--target-millions and --draft-millions: must be given together")
    sys.exit(measure_and_report("long_context", run, figures, options))


if __name__ == "__main__":
    main()
