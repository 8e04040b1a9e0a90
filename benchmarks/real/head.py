"""Measures what a recurrent head gains that has learned from nothing but a target's own text.

    python -m benchmarks.real.head [--targets smollm2,smollm2-2b] [--tokens 4000,16000,45000] [--prompts 6] [--runs 3]
        [--max-tokens 64] [--temperatures 0,0.7] [--threads N] [--weights q8_0] [--results DIR] [--json]

SmolLM2-135M-Instruct continues prompts that come with draftwire, half of them at temperature 0, and a head
(`local:recurrent`) learns from more and more of this text, as the learner of `serve --learn` has it learn. The
*agreement* is the share of tokens that the head finds likeliest next, in texts on other topics: the answers to prompts
of `python -m benchmarks.real`, half of them at temperature 0.

The last head then drafts in a verifier, next to lookup. Three ways take turns: *plain*, *lookup*, and *head*, which is
lookup and head together. The targets are SmolLM2 and the same widened to 2 B parameters: a head for the one drafts for
the other, since their states are the same; of the widened one the step takes as long as that of a large model.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from benchmarks.harness.pair_options import add_run_options
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from benchmarks.real.measurements import Measurements
from benchmarks.real.prompts import real_prompts
from benchmarks.real.universal import KINDS, TARGETS, groups, take_turns
from benchmarks.real.ways import TEMPERATURES, Asked, Ours
from draftwire import AsyncClient
from draftwire_core.engine.device.choices import TargetWeights
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.state_learner import StateLearner
from draftwire_core.training.learning.text_learner import TextTraining
from draftwire_core.training.learning.texts.draft_text import DraftText
from draftwire_core.training.learning.texts.prompts import built_in_prompts
from draftwire_core.training.learning.texts.served_text import ServedText
from draftwire_tools.serve.auto import LOOKUP

_TOGETHER = 32
_SLOTS = 32768
_LEARNED_TOKENS = 100
"""Most tokens of a text that is learned from."""
_LEAST_TIMED = 16
"""Tokens of an answer that is timed."""


def written(model: PackedModel, tokenizer: Tokenizer, prompts: Sequence[str], most: int) -> list[ServedText]:
    """Has the target answer prompts, half of them at temperature 0; returns the texts without loops."""
    engine = VerificationEngine(model, StepCost([1], [1.0]), EngineLimits(max_sequences=_TOGETHER, max_tree_nodes=1))
    specs = []
    for index, text in enumerate(prompts):
        rendered = tokenizer.render_chat([{"role": "user", "content": text}])
        tokens = tokenizer.encode(rendered, add_special_tokens=False)
        sampling = SamplingParams(temperature=TEMPERATURES[index % 2], seed=index)
        specs.append(SequenceSpec(index, tokens, len(tokens) + most, sampling, frozenset(model.eos_token_ids)))
    outputs = generate_all(engine, specs)
    return [ServedText.of(spec.tokens, out, "own", len(spec.tokens)) for spec, out in zip(specs, outputs, strict=True)]


def learned(target: Path, options: argparse.Namespace, place: Path) -> dict[str, object]:
    """Has a head learn, and writes it; returns the figures of its agreement."""
    tokenizer = Tokenizer.load(str(target))
    prompts = random.Random(0).sample(built_in_prompts(), len(built_in_prompts()))
    model = PackedModel.load(str(target), slots=_SLOTS)
    learner = StateLearner("", str(target), TextTraining(steps=400, epochs=3, seconds=1e6))
    unseen = [each.text for each in real_prompts(options.prompts) if each.task in KINDS]
    held_out = _examples(learner, written(model, tokenizer, unseen, _LEARNED_TOKENS))
    texts: list[DraftText] = []
    found: dict[str, object] = {"unseen tokens": sum(each.positions for each in held_out)}
    for wanted in options.tokens:
        while sum(each.positions for each in texts) < wanted:
            part, prompts = prompts[: 2 * _TOGETHER], prompts[2 * _TOGETHER :]
            texts += _examples(learner, written(model, tokenizer, part, _LEARNED_TOKENS))
        begun = time.process_time()
        learner.learn(texts, held_out, wanted, lambda line: print(line, file=sys.stderr, flush=True))
        found[f"{wanted} tokens: agreement"] = round(learner.after, 3)
        found[f"{wanted} tokens: processor seconds of reading and training"] = round(time.process_time() - begun)
    learner.write(place)
    return found


def _examples(learner: StateLearner, texts: Sequence[ServedText]) -> list[DraftText]:
    read = (learner.example(text.prompt.tolist(), text.output.tolist()) for text in texts)
    return [each for each in read if each is not None]


async def measured(name: str, head: Path, options: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Returns the figures of one target, and the number of outputs that differ."""
    target = TARGETS[name]
    path = await asyncio.to_thread(target.fetch)
    address = f"local:recurrent?model={head}"
    flags = ["--drafter", LOOKUP, "--drafter", address, "--no-prefix-cache", "--kv-slots", "4096"]
    if target.millions is not None:
        flags += ["--weights", options.weights]
    found: dict[str, object] = {}
    differing = 0
    with Services(threads=options.threads) as services:
        verifier = services.verifier(path, *flags)
        async with AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=600.0) as client:
            prompts = [
                (each.task, tuple(await client.tokenize(messages=[{"role": "user", "content": each.text}])))
                for each in real_prompts(options.prompts)
                if each.task in KINDS
            ]
            ways = [Ours("plain", client, ()), Ours("lookup", client, (LOOKUP,))]
            ways.append(Ours("head", client, (LOOKUP, address)))
            for temperature in options.temperatures:
                asked = [
                    Asked(task, tokens, options.max_tokens, temperature, seed)
                    for seed, (task, tokens) in enumerate(prompts)
                ]
                answers = await take_turns(ways, list(groups(asked, 1)), options.runs)
                plain = {each.asked.seed: each.request.token_ids for each in answers if each.way == "plain"}
                differing += sum(each.request.token_ids != plain[each.asked.seed] for each in answers)
                timed = Measurements(KINDS)
                for each in answers:
                    if len(plain[each.asked.seed]) >= _LEAST_TIMED:
                        timed.add(each.way, each.run, each.asked.task, each.request)
                at = f"{name}, T = {temperature:g}"
                for way in ("lookup", "head"):
                    found[f"{at}, {way}: speed-up, mean of the tasks"] = timed.mean_speed_up(way)
                    found[f"{at}, {way}: acceptance length"] = round(timed.acceptance_length(way), 2)
                for task in KINDS:
                    found[f"{at}, head, {task}: speed-up over lookup"] = timed.speed_up("head", task, "lookup")
                found[f"{at}, head: speed-up over lookup, mean of the tasks"] = timed.mean_speed_up("head", "lookup")
    return found, differing


def main() -> int:
    """Learns, measures, and prints the figures. Returns 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="smollm2,smollm2-2b", help="smollm2, smollm2-2b or both")
    parser.add_argument("--tokens", default=(4000, 16000, 45000), type=_whole, metavar="N,N", help="of texts to learn")
    parser.add_argument("--weights", choices=get_args(TargetWeights), default="q8_0", help="of the widened target")
    parser.add_argument("--temperatures", default=TEMPERATURES, type=_numbers, metavar="T,T", help="0,0.7 by default")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="by default one per core")
    add_run_options(parser, max_tokens=64, prompts=6)
    parser.set_defaults(runs=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures: dict[str, object] = {
        "requests": f"{options.prompts} prompts of each kind, at most {options.max_tokens} tokens, one at a time, "
        f"{options.threads} threads; weights of the widened target: {options.weights}"
    }
    differing = 0
    with tempfile.TemporaryDirectory() as directory:
        figures |= learned(TARGETS["smollm2"].fetch(), options, Path(directory) / "head")
        for name in options.targets.split(","):
            of_target, count = asyncio.run(measured(name, Path(directory) / "head", options))
            figures |= of_target
            differing += count
    figures["outputs that differ"] = differing
    print_report("head", figures, options)
    return bool(differing)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
