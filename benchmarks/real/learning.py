"""Compares what the universal drafter gains from learning a target's tokens alone, and from learning its probabilities.

    python -m benchmarks.real.learning [--texts 240] [--seconds 300] [--prompts 36] [--max-tokens 64] [--results DIR]
    python -m benchmarks.real.learning --bundled --texts 100 --seconds 20

Gemma 3 270M continues prompts that come with draftwire, and SmolLM2-135M-Instruct is tuned to these texts twice, each
time for the same processor seconds and with the same order of texts: by the target's tokens, and by the probabilities
of its eight likeliest ones. The figures are of prompts on other topics, those of `python -m benchmarks.real`: as in
`benchmarks.real.agreement`, how often the draft model's most likely text begins with the target's next token, and how
often the translated drafter's first guess is that token. How far a training comes depends on its processor seconds.

`--bundled` takes small models instead, which need a twentieth of the time: `models/draft-other` learns from
`models/target`, and prompts of the same files are either learned or unseen.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.real.agreement import DRAFT, SLOTS, TARGET, Written, agreement, groups, guesses, guessing, write
from benchmarks.real.prompts import TASKS, real_prompts
from benchmarks.real.ways import TEMPERATURES
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.text_learner import TextLearner, TextTraining
from draftwire_core.training.learning.texts.prompts import built_in_prompts
from draftwire_core.training.learning.texts.served_text import ServedText
from draftwire_core.training.learning.texts.top_tokens import TopTokens

WAYS = ("tokens", "probabilities")
_TOGETHER = 12
_MODELS = Path(__file__).parents[2] / "models"
_END = "\n\nAnswer:\n"
"""Text after a prompt, since the target is no chat model."""


class Material(NamedTuple):
    """A draft model that learns, and the target that it learns from."""

    target: str
    draft: str
    learned: list[str]
    """Prompts of the texts."""
    unseen: list[tuple[str, str]]
    """Tasks and prompts of the figures."""


def real(texts: int, prompts: int) -> Material:
    """Returns the published models, and prompts on different topics."""
    paths = [str(REAL_MODELS[name].file.fetch()) for name in (TARGET, DRAFT)]
    learned = [f"{text}{_END}" for text in random.Random(0).sample(built_in_prompts(), texts)]
    per_task = real_prompts(prompts // len(TASKS))
    return Material(paths[0], paths[1], learned, [(each.task, f"{each.text}{_END}") for each in per_task])


def bundled(texts: int, prompts: int) -> Material:
    """Returns the bundled models, and prompts from different files."""
    found: dict[str, list[str]] = {}
    for line in (_MODELS / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        found.setdefault(prompt["source"], []).append(prompt["text"])
    sources = random.Random(0).sample(sorted(found), len(found))
    unseen: list[tuple[str, str]] = []
    while len(unseen) < prompts:
        source = sources.pop()
        unseen += [(source, text) for text in found[source]]
    learned = [text for source in sources for text in found[source]]
    return Material(str(_MODELS / "target"), str(_MODELS / "draft-other"), learned[:texts], unseen[:prompts])


def texts_with_probabilities(target: PackedModel, prompts: Sequence[list[int]], most: int) -> list[ServedText]:
    """Lets the target continue prompts, as an idle one does for its learner, half of them at temperature 0."""
    engine = VerificationEngine(target, StepCost([1], [1.0]), EngineLimits(max_sequences=_TOGETHER))
    for index, tokens in enumerate(prompts):
        sampling = SamplingParams(temperature=TEMPERATURES[index % 2], seed=index)
        ends = frozenset(target.eos_token_ids)
        engine.add(SequenceSpec(index, tokens, len(tokens) + most, sampling, ends, likeliest=True))
    outputs: list[list[int]] = [[] for _ in prompts]
    tops: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in prompts]
    while engine.running:
        for outcome in engine.step().outcomes:
            assert outcome.likeliest is not None
            outputs[outcome.sequence_id] += outcome.tokens
            token_ids, log_probs = outcome.likeliest
            tops[outcome.sequence_id].append((token_ids.astype(np.int32), log_probs.astype(np.float16)))
    return [
        ServedText.of(
            prompt,
            output,
            "own",
            len(prompt),
            TopTokens(*(np.concatenate(each) for each in zip(*top, strict=True))),
        )
        for prompt, output, top in zip(prompts, outputs, tops, strict=True)
    ]


def tuned(
    way: str, draft: str, texts: Sequence[ServedText], target: Tokenizer, seconds: float, place: Path
) -> dict[str, object]:
    """Tunes the drafter, and writes it if it is better on held-out texts; returns what it reported."""
    told: list[str] = []
    training = TextTraining(seconds=seconds, steps=1 << 20, epochs=1 << 20, probabilities=way == "probabilities")
    learner = TextLearner(draft, target, training)
    learned, held_out = [], []
    for text in texts:
        read = learner.example(text.prompt.tolist(), text.output.tolist(), text.top)
        if read is not None:
            (held_out if text.held_out else learned).append(read)

    def tell(line: str) -> None:
        told.append(line)
        print(f"{way}: {line}", file=sys.stderr, flush=True)

    if learner.learn(learned, held_out, 0, tell):
        learner.write(place)
    known = [bool(row.any()) for text in learned for row in np.isfinite(text.top.log_probs)]
    return {
        f"{way}: tokens of the texts": sum(each.positions for each in learned),
        f"{way}: of these with probabilities": round(sum(known) / max(1, len(known)), 3),
        f"{way}: steps": told[-1].split()[1] if told else "0",
        f"{way}: held-out agreement before": round(learner.before, 3),
        f"{way}: held-out agreement after": round(learner.after, 3),
    }


def right(
    model: PackedModel, token_map: TokenMap, texts: Sequence[Written], size: int
) -> tuple[list[bool], list[bool]]:
    """Returns for each token of unseen texts whether the models agree on it, and whether it is the first guess."""
    agreed: list[bool] = []
    guessed: list[bool] = []
    for group in groups(texts):
        wanted = chain.from_iterable(text.output for text in group)
        agreed += chain.from_iterable(agreement(model, token_map, group))
        found = chain.from_iterable(guesses(guessing(model, token_map), group, size))
        guessed += [each[:1] == [token] for each, token in zip(found, wanted, strict=True)]
    return agreed, guessed


def compared(found: dict[str, list[bool]]) -> dict[str, object]:
    """Returns the shares, and the difference that probabilities make, with its standard error."""
    figures: dict[str, object] = {way: round(float(np.mean(each)), 3) for way, each in found.items()}
    if set(WAYS) <= set(found):
        tokens, probabilities = (np.array(found[way], float) for way in WAYS)
        more = probabilities - tokens
        figures["probabilities - tokens"] = round(float(more.mean()), 3)
        figures["standard error of that"] = round(float(more.std() / len(more) ** 0.5), 3)
    return figures


def main() -> None:
    """Tunes twice, measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=240, help="texts to learn from, held-out ones included")
    parser.add_argument("--seconds", type=float, default=300, help="processor seconds of each training")
    parser.add_argument("--prompts", type=int, default=36, help="unseen prompts")
    parser.add_argument("--bundled", action="store_true", help="take the models that come with draftwire")
    parser.add_argument("--max-tokens", type=int, default=64)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    material = (bundled if options.bundled else real)(options.texts, options.prompts)
    tokenizer = Tokenizer.load(material.target)
    unseen = [(task, tokenizer.encode(text)) for task, text in material.unseen]
    with torch.inference_mode():
        target = PackedModel.load(material.target, slots=SLOTS)
        texts = texts_with_probabilities(target, [*map(tokenizer.encode, material.learned)], options.max_tokens)
        written = {each: write(target, unseen, each, options.max_tokens) for each in TEMPERATURES}
    del target
    print(f"{len(texts)} texts are written", file=sys.stderr, flush=True)
    figures: dict[str, object] = {
        "models": f"{Path(material.draft).name} learns from {Path(material.target).name}",
        "training": f"{options.seconds:g} processor seconds each",
        "unseen": f"{len(unseen)} prompts, at most {options.max_tokens} tokens each",
    }
    token_map = TokenMap(tokenizer.vocabulary(), Tokenizer.load(material.draft).vocabulary())
    found: dict[tuple[float, str], dict[str, list[bool]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        places = {"before": material.draft} | {way: str(Path(directory) / way) for way in WAYS}
        for way in WAYS:
            figures |= tuned(way, material.draft, texts, tokenizer, options.seconds, Path(places[way]))
        with torch.inference_mode():
            for way, place in places.items():
                if not Path(place).exists():
                    continue  # it was no better
                weights = "checkpoint" if way == "before" or options.bundled else "q8_0"
                model = PackedModel.load(place, slots=SLOTS, row_exact=False, weights=weights)
                for temperature, each in written.items():
                    both = right(model, token_map, each, len(token_map.target))
                    for what, values in zip(("the models agree", "first guess right"), both, strict=True):
                        found.setdefault((temperature, what), {})[way] = values
                print(f"{way}: measured", file=sys.stderr, flush=True)
    for (temperature, what), ways in found.items():
        figures |= {f"T = {temperature:g}: {what}: {way}": value for way, value in compared(ways).items()}
    print_report("learning", figures, options)


if __name__ == "__main__":
    main()
