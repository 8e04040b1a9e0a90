"""Training texts of heads and layers on a frozen target: texts and prompts, with the target's continuations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.progress import CountedLines, Say
from draftwire_tools.prompt_file import read_prompt_file

_IGNORED = -100
"""Label of places without a token, by the convention of torch's cross-entropy."""
_AT_ONCE = 16
_HELD_OUT = 10
"""One text in this many is held out to measure what was trained."""


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Returns the texts of files: the field `prompt` or `text` of each line of a `.jsonl` file, else the whole file.

    Raises ValueError.
    """
    return [entry.text for path in paths for entry in read_prompt_file(path, "--prompts", by_line=False)]


def continued(
    model: PackedModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    rounds: int,
    tokens: int,
    temperature: float,
    seed: int,
    say: Say,
) -> list[list[int]]:
    """Returns each text as token ids, continued by the target by `tokens` tokens, `rounds` times with different seeds.

    With 0 rounds, returns only the texts. say: receives lines of progress. Raises ValueError for a text that is too
    long for the target.
    """
    prompts = [ids for ids in (tokenizer.encode(text) for text in texts) if ids]
    if not rounds:
        return prompts
    limits = EngineLimits(max_sequences=_AT_ONCE, max_tree_nodes=1)
    engine = VerificationEngine(model, StepCost([1], [1.0]), limits)
    eos = frozenset(model.eos_token_ids)
    specs = [
        SequenceSpec(
            index, prompt, len(prompt) + tokens, SamplingParams(temperature=temperature, seed=seed + index), eos
        )
        for index, prompt in enumerate(prompts * rounds)
    ]
    told = CountedLines(say, "tokens of continuations", tokens * len(specs))
    found = generate_all(engine, specs, told.advance)
    return [[*spec.tokens, *after] for spec, after in zip(specs, found, strict=True)]


class Windows:
    """Documents cut into windows of equal length; the last one of each document is padded."""

    def __init__(self, documents: Sequence[Sequence[int]], length: int, shortest: int):
        """Cuts documents. shortest: windows with fewer tokens are skipped. Raises ValueError if none is left."""
        cut = [document[at : at + length] for document in documents for at in range(0, len(document), length)]
        kept = [window for window in cut if len(window) >= shortest]
        if not kept:
            raise ValueError(f"the texts are too short for a window of {shortest} tokens")
        self.labels = torch.tensor([[*window, *[_IGNORED] * (length - len(window))] for window in kept])
        """int64 [windows, length]"""

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, step: int, size: int, seed: int) -> torch.Tensor:
        """Returns the labels of a step's windows. Each epoch has every window once, in an order of its own."""
        picked = []
        for place in range(step * size, (step + 1) * size):
            turn, index = divmod(place, len(self))
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed + turn))
            picked.append(int(order[index]))
        return self.labels[picked]


def windows_of(
    model: PackedModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    length: int,
    shortest: int,
    rounds: int,
    tokens: int,
    temperature: float,
    seed: int,
    say: Say,
) -> tuple[Windows, Windows]:
    """Returns the windows to train on and the held-out ones, of texts `continued` by the target.

    length, shortest: see Windows. rounds, tokens, temperature, seed, say: see `continued`. Raises ValueError.
    """
    if len(texts) < 2:
        raise ValueError("needs at least two texts: one is held out to measure what was trained")
    learnt = [text for index, text in enumerate(texts) if index % _HELD_OUT]
    parts = [
        Windows(
            continued(
                model, tokenizer, part, rounds=rounds, tokens=tokens, temperature=temperature, seed=seed, say=say
            ),
            length,
            shortest,
        )
        for part in (learnt, texts[::_HELD_OUT])
    ]
    return parts[0], parts[1]


def read_prompts(path: Path, tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """Returns the prompts of a file as token ids, each cut to its last `longest` tokens.

    Each line of a .jsonl file is an object with `token_ids`, or with a text as `prompt` or `text`. In any other file
    each line that is not empty is a text. Those without tokens, such as blanks, are left out. Raises ValueError.
    """
    entries = read_prompt_file(path, "--prompts", by_line=True)
    read = ((entry.token_ids or tokenizer.encode(entry.text))[-longest:] for entry in entries)
    return [prompt for prompt in read if prompt]
