"""Compares how often two models agree on the next token with how often the translated drafter guesses it.

    python -m benchmarks.real.agreement [--prompts 4] [--max-tokens 48] [--temperatures 0,0.7] [--results DIR] [--json]

Gemma 3 270M writes texts, and SmolLM2-135M-Instruct reads them in tokens of its own. The models agree at a place if
SmolLM2's most likely text from there on begins with Gemma's next token, as Gemma's tokenizer reads it. This asks for no
guess in the target's tokens, and no shared noise, so it is what translation could reach at temperature 0. A drafter is
asked for its best guesses at each place, after a verdict of the one token before it. Then trees and chains are verified
as a whole, where rows cost nothing. The files and prompts are those of
`python -m benchmarks.real`; loops are cut. No figure depends on a clock.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.real.loops import cut_length
from benchmarks.real.prompts import real_prompts
from benchmarks.real.ways import TEMPERATURES
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.tree.proposal import Proposal, ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree

TARGET, DRAFT = "Gemma 3", "SmolLM2"
WIDTH = 3
"""Guesses at a place."""
NODES = 8
"""Most nodes of a tree."""
AGREE, FIRST, AMONG = "the models agree", "first guess right", f"one of {WIDTH} guesses right"
TREES, CHAINS = f"tokens per tree of {NODES} nodes", f"tokens per chain of {NODES} nodes"
SILENT = "first guess right without the shared noise"
SLOTS = 12288
"""KV slots of a model."""
_TOGETHER = 12
"""Texts that are read together."""
_CHUNK = 64
"""Most tokens of a text that go through the model in one pass."""
_LONGEST = 8
"""Most draft tokens of a continuation."""


@dataclass(frozen=True)
class Written:
    """A text that the target has written."""

    task: str
    prompt: Sequence[int]
    """Tokens of the target."""
    output: Sequence[int]
    """Tokens of the target, without those of a loop."""
    sampling: SamplingParams


@dataclass
class _Read:
    """A text as the draft model reads it."""

    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    then: int = -1
    """The most likely token after all of them; -1 before it is known."""


class Continuations:
    """The most likely continuations of texts, which grow, by one model."""

    def __init__(self, model: PackedModel, texts: int):
        self._model = model
        self._read = [_Read() for _ in range(texts)]

    def likeliest(self, contexts: dict[int, list[int]]) -> dict[int, int]:
        """Returns the most likely next token of some texts, given as all their tokens. What a text has in common with
        the last time is not read again."""
        waiting = []
        for index, tokens in contexts.items():
            read = self._read[index]
            if tokens == read.tokens and len(read.slots) == len(tokens):
                continue
            same = 0
            while same < min(len(tokens) - 1, len(read.slots)) and tokens[same] == read.tokens[same]:
                same += 1
            self._model.pool.give_back(read.slots[same:])
            del read.slots[same:]
            read.tokens = list(tokens)
            waiting.append(read)
        while waiting:
            self._pass(waiting)
            waiting = [read for read in waiting if len(read.slots) < len(read.tokens)]
        return {index: self._read[index].then for index in contexts}

    def _pass(self, waiting: Sequence[_Read]) -> None:
        builder = BatchBuilder()
        complete = []
        for read in waiting:
            start, end = len(read.slots), min(len(read.tokens), len(read.slots) + _CHUNK)
            taken = self._model.pool.take(end - start, read.slots[-1] if read.slots else 0)
            last = end == len(read.tokens)
            rows = [
                builder.add_row(read.tokens[at], at, int(slot), last and at == end - 1)
                for at, slot in zip(range(start, end), taken, strict=True)
            ]
            builder.add_lane(np.array(read.slots, dtype=np.int64), rows)
            read.slots += taken.tolist()
            if last:
                complete.append(read)
        logits = self._model.forward(builder.build(self._model.group_size, self._model.device))
        for read, row in zip(complete, logits, strict=True):
            read.then = int(row.argmax())

    def close(self) -> None:
        """Frees the KV slots."""
        for read in self._read:
            self._model.pool.give_back(read.slots)


def agreement(model: PackedModel, token_map: TokenMap, texts: Sequence[Written]) -> list[list[bool]]:
    """Returns for each token of each output whether the draft model's most likely text begins with it."""
    found: list[list[bool]] = [[] for _ in texts]
    continuations = Continuations(model, len(texts))
    for place in range(max(len(text.output) for text in texts)):
        at = [index for index, text in enumerate(texts) if place < len(text.output)]
        contexts = {index: _own_tokens(token_map, texts[index], place) for index in at}
        after: dict[int, list[int]] = {index: [] for index in at}
        while at:
            thens = continuations.likeliest({index: contexts[index] + after[index] for index in at})
            going = []
            for index in at:
                after[index].append(thens[index])
                agrees = _agrees(token_map, texts[index].output[place], after[index])
                if agrees is None:
                    going.append(index)
                else:
                    found[index].append(agrees)
            at = going
    continuations.close()
    return found


def _own_tokens(token_map: TokenMap, text: Written, place: int) -> list[int]:
    """A text up to a place in the draft model's own tokens, as its tokenizer reads the whole."""
    spelled = b"".join(map(token_map.text, [*text.prompt, *text.output[:place]]))
    return [*token_map.draft.opening, *token_map.draft.encode_lines(spelled)]


def _agrees(token_map: TokenMap, token: int, after: Sequence[int]) -> bool | None:
    """Whether a continuation begins with a target token; None while it is too short to say."""
    if token in token_map.marks:
        return after[0] == token_map.marks[token]
    wanted, text = token_map.text(token), token_map.draft.spell(after)
    if not token_map.draft.spellings[after[-1]] or len(after) == _LONGEST:
        return text.startswith(wanted) and token_map.target.encode(text)[0] == token
    if not (wanted.startswith(text) or text.startswith(wanted)):
        return False
    # One token more, since the target's next token may be longer than this one.
    if len(token_map.draft.spell(after[:-1])) < len(wanted):
        return None
    return token_map.target.encode(text)[0] == token


class Followed:
    """A text that is verified token by token, and the verifier's copy of the drafter's tree."""

    def __init__(self, text: Written, size: int):
        """size: the target's vocabulary."""
        self._text = text
        self._known = list(text.prompt)
        self._reader = ProposalReader("draft", NODES, size)
        self.tree = TokenTree(len(self._known), self._known[-1])

    def spec(self, size: int, sampling: SamplingParams | None) -> DraftSpec:
        """The sequence for a drafter. sampling: instead of what the text was drawn with."""
        longest = len(self._text.prompt) + len(self._text.output) + 2
        return DraftSpec(list(self._known), sampling or self._text.sampling, NODES, longest, size)

    @property
    def rest(self) -> Sequence[int]:
        """The tokens of the output that are not committed."""
        return self._text.output[len(self._known) - len(self._text.prompt) :]

    def take(self, proposal: Proposal) -> None:
        """Adds the drafter's nodes to the tree."""
        self._reader.merge(proposal, self.tree, self._known)

    def commit(self, count: int) -> tuple[int, Sequence[int]]:
        """Commits so many tokens; returns the committed length and these tokens."""
        verdict = list(self.rest[:count])
        self.tree.commit(verdict)
        self._known += verdict
        return len(self._known), verdict


def follow(
    drafter: TranslatingDrafter, texts: Sequence[Written], size: int, sampling: SamplingParams | None = None
) -> Iterator[tuple[int, Followed]]:
    """Yields each text when the drafter has drafted for it, with its index, again and again until all of it is
    committed. Who takes it commits some of its tokens and reports these to the drafter."""
    followed = dict(enumerate(Followed(text, size) for text in texts))
    for index, each in followed.items():
        drafter.open(index, each.spec(size, sampling))
    while followed:
        while drafter.busy:
            for key, proposal in drafter.grow().proposals.items():
                assert isinstance(key, int)
                followed[key].take(proposal)
        for index, each in list(followed.items()):
            yield index, each
            if not each.rest:
                drafter.close(index)
                del followed[index]


def guesses(
    drafter: TranslatingDrafter, texts: Sequence[Written], size: int, sampling: SamplingParams | None = None
) -> list[list[list[int]]]:
    """Returns the guesses for each token of each output, best first. size: the target's vocabulary. sampling: instead
    of what each text was drawn with."""
    found: list[list[list[int]]] = [[] for _ in texts]
    for index, text in follow(drafter, texts, size, sampling):
        found[index].append(list(text.tree.root.children))
        drafter.commit(index, *text.commit(1))
    return found


def verifications(drafter: TranslatingDrafter, texts: Sequence[Written], size: int) -> int:
    """Returns in how many verifications of whole trees the outputs are committed."""
    steps = 0
    for index, text in follow(drafter, texts, size):
        drafter.commit(index, *text.commit(len(text.tree.walk(text.rest)) + 1))
        steps += 1
    return steps


def write(
    target: PackedModel, prompts: Sequence[tuple[str, list[int]]], temperature: float, most: int
) -> list[Written]:
    """Lets the target answer all prompts."""
    engine = VerificationEngine(target, StepCost([1], [1.0]), EngineLimits(max_sequences=_TOGETHER))
    specs = [
        SequenceSpec(
            index,
            tokens,
            len(tokens) + most,
            SamplingParams(temperature=temperature, seed=index),
            frozenset(target.eos_token_ids),
        )
        for index, (_, tokens) in enumerate(prompts)
    ]
    return [
        Written(task, tokens, output[: cut_length(output)], spec.sampling)
        for (task, tokens), spec, output in zip(prompts, specs, generate_all(engine, specs), strict=True)
    ]


def guessing(model: PackedModel, token_map: TokenMap) -> TranslatingDrafter:
    """A drafter that guesses the next token and nothing after it."""
    return TranslatingDrafter(model, token_map, TreeGrowth(width=WIDTH, depth=1, credit_worth=0.0))


def measure(
    model: PackedModel, token_map: TokenMap, texts: Sequence[Written], temperature: float, losses: bool
) -> dict[str, object]:
    """Returns the figures of one temperature. losses: whether to print what translation loses."""
    size = len(token_map.target)
    noisy, silent = guessing(model, token_map), guessing(model, token_map)
    trees = {
        TREES: TranslatingDrafter(model, token_map),
        CHAINS: TranslatingDrafter(model, token_map, TreeGrowth(width=1)),
    }
    counts: Counter[str] = Counter()
    for group in groups(texts):
        wanted = [token for text in group for token in text.output]
        agreed = [*chain.from_iterable(agreement(model, token_map, group))]
        found = [*chain.from_iterable(guesses(noisy, group, size))]
        for agrees, each, token in zip(agreed, found, wanted, strict=True):
            right = each[:1] == [token]
            counts.update({AGREE: agrees, FIRST: right, AMONG: token in each, "tokens": 1})
            if losses and agrees and not right:
                lost = token_map.text(token), [token_map.text(guess) for guess in each]
                print(f"T = {temperature:g}: {lost[0]!r} is not the first of {lost[1]}", file=sys.stderr)
        for kind, drafter in trees.items():
            counts[kind] += verifications(drafter, group, size)
        if temperature:
            for each, token in zip(
                chain.from_iterable(guesses(silent, group, size, SamplingParams(temperature=0.0))), wanted, strict=True
            ):
                counts[SILENT] += each[:1] == [token]
    tokens = max(1, counts["tokens"])
    figures: dict[str, object] = {"tokens": counts["tokens"]}
    figures |= {what: round(counts[what] / tokens, 3) for what in (AGREE, FIRST, AMONG)}
    figures |= {kind: round(tokens / max(1, counts[kind]), 2) for kind in trees}
    if temperature:
        figures[SILENT] = round(counts[SILENT] / tokens, 3)
    figures["first guess / agreement"] = round(counts[FIRST] / max(1, counts[AGREE]), 3)
    return {f"T = {temperature:g}: {what}": value for what, value in figures.items()}


def groups(texts: Sequence[Written]) -> Iterator[Sequence[Written]]:
    """Yields the texts that are read together; those without an output are left out."""
    kept = [text for text in texts if text.output]
    for start in range(0, len(kept), _TOGETHER):
        yield kept[start : start + _TOGETHER]


@torch.inference_mode()
def main() -> None:
    """Measures all temperatures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each task")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperatures", default=TEMPERATURES, type=_numbers, metavar="T,T", help="0,0.7 by default")
    parser.add_argument("--losses", action="store_true", help="print where the models agree and the guess is another")
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths: dict[str, Path] = {name: REAL_MODELS[name].file.fetch() for name in (TARGET, DRAFT)}
    tokenizer = Tokenizer.load(str(paths[TARGET]))
    prompts = [(each.task, tokenizer.encode(f"{each.text}\n\nAnswer:\n")) for each in real_prompts(options.prompts)]
    target = PackedModel.load(str(paths[TARGET]), slots=SLOTS)
    written = {each: write(target, prompts, each, options.max_tokens) for each in options.temperatures}
    del target
    token_map = TokenMap(tokenizer.vocabulary(), Tokenizer.load(str(paths[DRAFT])).vocabulary())
    model = PackedModel.load(str(paths[DRAFT]), slots=SLOTS, row_exact=False)
    figures: dict[str, object] = {
        "models": f"{DRAFT} drafts for {TARGET}: {paths[DRAFT].name}, {paths[TARGET].name}",
        "requests": f"{options.prompts} prompts of each task, at most {options.max_tokens} tokens",
    }
    for temperature, texts in written.items():
        print(f"T = {temperature:g}: {len(texts)} texts are written", file=sys.stderr, flush=True)
        figures |= measure(model, token_map, texts, temperature, options.losses)
    print_report("agreement", figures, options)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


if __name__ == "__main__":
    main()
