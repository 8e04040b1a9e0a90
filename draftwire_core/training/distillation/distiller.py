"""The complete distillation: collects the target's answers, trains the draft model on them, and measures acceptance.

One directory holds everything: `data`, the examples; `training.pt`, the state of the training; `draft`, the checkpoint
for drafter services. After an interruption the same call continues from there.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from draftwire_core.engine.model.weights_fingerprint import weights_fingerprint
from draftwire_core.training.data.dataset import Dataset
from draftwire_core.training.data.texts import read_prompts
from draftwire_core.training.distillation.acceptance import DraftAcceptance, measure
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.distillation.trainer import DistillationOptions, Trainer
from draftwire_core.training.teachers.teacher import Question, Teacher
from draftwire_tools.progress import LINE_SECONDS, Pace, Say

_TOGETHER = 16
"""Questions asked concurrently."""


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """Options of the collection of examples."""

    max_tokens: int = 128
    """Most tokens of a continuation."""
    temperature: float = 1.0
    """Temperature of the continuations; the distributions are always those at temperature 1."""
    samples: int = 1
    """Continuations per prompt, each with its own seed."""
    top: int = 32
    """Tokens recorded of each distribution."""
    max_prompt_tokens: int = 512
    """Longest prompt; longer ones lose their beginning."""
    most_bytes: int = 1 << 30
    """Size of the data set at which the collection ends."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """The result of a distillation."""

    directory: Path
    """The draft model's checkpoint."""
    examples: int
    held_out: int
    """Held-out examples among them, used for measuring and not for training."""
    steps: int
    before: DraftAcceptance
    """Held-out acceptance before the training."""
    after: DraftAcceptance
    """Held-out acceptance after the training."""

    @property
    def worse(self) -> str:
        """The figures that the training has made worse, in a sentence; empty if nothing."""
        kinds = {
            "sampled": (self.before.coupled, self.after.coupled),
            "greedy": (self.before.agreement, self.after.agreement),
        }
        fell = [
            f"{kind} from {100 * before:.1f} % to {100 * after:.1f} %"
            for kind, (before, after) in kinds.items()
            if after < before
        ]
        if not fell:
            return ""
        return (
            f"the training made the draft worse: held-out acceptance fell, {' and '.join(fell)}. Keep the draft "
            "that it began with, or train on more prompts or with a lower --learning-rate"
        )


@dataclass
class Distiller:
    """One distillation."""

    teacher: Teacher
    draft: Draft
    directory: Path
    collection: CollectionOptions
    training: DistillationOptions
    tell: Say
    """Receives lines of progress."""
    held_out: float = 0.1
    """Share of the prompts held out for measuring."""
    checkpoint_every: int = 100
    """Steps between two checkpoints."""
    _told: float = field(default=0.0, init=False)

    def run(self, prompts: Path) -> Distillation:
        """Runs the distillation, or continues it.

        Raises ValueError, DatasetError, TrainingStateError, ModelLoadError, and the teacher's errors.
        """
        if self.draft.tokenizer.sha256 != self.teacher.tokenizer_sha256:
            raise ValueError(f"--draft: the tokenizer of {self.draft.source} is not the target's")
        longest = self._longest_prompt()
        asked = read_prompts(prompts, self.draft.tokenizer, longest)
        lacking = next((token for each in asked for token in each if not 0 <= token < self.draft.vocab_size), None)
        if lacking is not None:
            raise ValueError(f"--prompts: token {lacking} is none of the draft model's {self.draft.vocab_size}")
        data = self.collect(asked)
        return self.train(data, len(asked))

    def collect(self, prompts: list[list[int]]) -> Dataset:
        """Asks the questions whose answers are not in the data set yet."""
        options = self.collection
        description = {
            "target": self.teacher.fingerprint,
            "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "samples": options.samples,
            "top": options.top,
        }
        data = Dataset(self.directory / "data", description, most_bytes=options.most_bytes)
        total = len(prompts) * options.samples
        pace, first = Pace(), len(data)
        while len(data) < total:
            numbers = range(len(data), min(len(data) + _TOGETHER, total))
            questions = [
                Question(prompts[number % len(prompts)], options.max_tokens, options.temperature, seed=number)
                for number in numbers
            ]
            for example in self.teacher.answer(questions, options.top):
                if not data.append(example):
                    self.tell(f"the data set is full: {len(data)} of {total} examples")
                    return data
            words = f"collected {len(data)} of {total} examples"
            self._tell_now_and_then(words, pace, (len(data) - first) / (total - first))
        return data

    def train(self, data: Dataset, prompts: int) -> Distillation:
        """Trains on all prompts but the held-out ones, and writes the checkpoint."""
        every = max(2, round(1 / self.held_out))
        held_out = [index for index in range(len(data)) if index % prompts % every == 0]
        learned = [index for index in range(len(data)) if index % prompts % every]
        if not learned or not held_out:
            raise ValueError("--prompts: at least two are needed: one to hold out and one to learn from")
        measured = [data[index] for index in held_out]
        self._check_ids(data)
        size = self.training.batch_size
        self.tell(f"measuring the draft model on {len(held_out)} held-out examples")
        before = measure(self.draft.model, measured, batch_size=size, device=self.draft.device)
        self.tell(f"before: {before}")
        facts = {"draft": weights_fingerprint(self.draft.model), "examples": len(data), "held_out": self.held_out}
        state = self.directory / "training.pt"
        trainer = Trainer(self.draft.model, self.training, device=self.draft.device)
        if state.exists():
            resumed = trainer.load(state, facts)
            self.tell(
                f"resuming from step {trainer.steps}" if resumed else f"{state} is damaged: training begins again"
            )
        pace, first = Pace(), trainer.steps
        while not trainer.done:
            loss = trainer.step(lambda index: data[learned[index]], len(learned))
            words = f"step {trainer.steps} of {self.training.steps}, {self.training.divergence} {loss:.4f}"
            self._tell_now_and_then(words, pace, (trainer.steps - first) / (self.training.steps - first))
            if trainer.done or trainer.steps % self.checkpoint_every == 0:
                trainer.save(state, facts)
        after = measure(self.draft.model, measured, batch_size=size, device=self.draft.device)
        self.tell(f"after: {after}")
        self.draft.write(self.directory / "draft")
        return Distillation(self.directory / "draft", len(data), len(held_out), trainer.steps, before, after)

    def _longest_prompt(self) -> int:
        room = min(self.teacher.longest, self.draft.context_length) - self.collection.max_tokens
        if room < 1:
            raise ValueError(f"--max-tokens: {self.collection.max_tokens} leaves no room for a prompt")
        return min(self.collection.max_prompt_tokens, room)

    def _check_ids(self, data: Dataset) -> None:
        """Raises an error for ids beyond the draft's vocabulary; the target's may be padded further."""
        most = max(int(max(data[index].token_ids.max(), data[index].tokens.max())) for index in range(len(data)))
        if most >= self.draft.vocab_size:
            raise ValueError(f"--draft: has {self.draft.vocab_size} tokens, but the target reported token {most}")

    def _tell_now_and_then(self, words: str, pace: Pace, done: float) -> None:
        now = time.monotonic()
        if done == 1 or now - self._told >= LINE_SECONDS:
            self._told = now
            self.tell(f"{words} ({pace.of(done)})")
