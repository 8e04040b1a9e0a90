"""A draft model that learns what the target writes next, in its own tokens.

It learns the target's distribution over its likeliest tokens, where these are known, and the token itself elsewhere:
Zhou and others, "DistillSpec", arXiv 2310.08461, and Liu and others, "Online speculative decoding", arXiv 2310.07177.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translated_draft import end_of
from draftwire_core.engine.drafters.translation.translation import token_map_of
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.example import Example, make_batch
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.distillation.trainer import batch_indices
from draftwire_core.training.learning.texts.draft_text import DraftText, read_text
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from draftwire_tools.progress import Pace

_TELL_SECONDS = 30.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True, slots=True)
class TextTraining:
    """Options of the training of one round, which ends with whatever comes first: its steps, its time, its epochs."""

    seconds: float = 300.0
    """Processor seconds. A process of the lowest priority gets few of them while others need the processor."""
    steps: int = 400
    epochs: int = 3
    """Passes over the texts."""
    step_tokens: int = 1024
    """Tokens of a step, prompts included."""
    window: int = 512
    """Most tokens that go through the model at once, which bounds its memory."""
    learning_rate: float = 1e-4
    """Peak learning rate, reached after the warm-up; a cosine decays it to zero."""
    warmup: int = 5
    """Steps in which the learning rate rises."""
    probabilities: bool = False
    """Whether to learn the probabilities of the target's likeliest tokens, where they are known."""


class TextLearner:
    """A Learner (see `refresh.learner.Learner`) whose examples are texts. Its model is in memory only while it is
    trained."""

    def __init__(self, source: str, target: Tokenizer | None, training: TextTraining, device: str = "cpu"):
        """Learns on from a checkpoint.

        source: directory, GGUF file or hub id of the draft model. target: the target's tokenizer; None if the draft
        model has the same. Raises ModelLoadError.
        """
        self.source = source
        self.options = training
        own = Tokenizer.load(source)
        self._map: TokenMap | None = None
        if target is not None and target.sha256 != own.sha256:
            self._map = token_map_of(own.vocabulary(), target.vocabulary())
        self.tokenizer_sha256 = own.sha256 if target is None else target.sha256
        self.context_length = 1 << 30
        """Longer texts are cut into windows."""
        self.before = self.after = 0.0
        """Agreement on held-out texts before and after the last training: the share of their tokens that the draft
        model finds likeliest."""
        self.measured = 0
        """Held-out tokens on which it was measured."""
        self.quantised = False
        """Whether the checkpoint that was loaded last has quantised weights."""
        self._device = device
        self._source_before = source
        self._trained: Draft | None = None

    def example(self, prompt: list[int], output: list[int], top: TopTokens | None = None) -> DraftText | None:
        """Returns a text as the draft model reads it; None if there is nothing to learn in it. top: the target's
        likeliest tokens at the positions of the output, if they are known."""
        window = ContextWindow(self.options.window, self.options.window)
        known = top if self.options.probabilities and top is not None else TopTokens.none(len(output))
        return read_text(list(end_of(prompt, window)), output, self._map, known)

    def learn(
        self, learned: Sequence[DraftText], held_out: Sequence[DraftText], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether the agreement on held-out texts is better than before. If not, forgets the weights.
        Leaves out what has tokens that the draft model lacks, as a client's prompt may. Raises ModelLoadError."""
        draft = Draft(self.source, device=self._device)
        self.quantised = draft.quantised
        windows, held = (
            [
                part
                for text in texts
                for part in text.windows(self.options.window, draft.vocab_size)
                if int(part.tokens.max()) < draft.vocab_size
            ]
            for texts in (learned, held_out)
        )
        self.measured = sum(each.positions for each in held)
        if not windows or not held:
            tell(f"the texts have nothing but tokens beyond the {draft.vocab_size} of {self.source}")
            return False
        self.before = agreement(draft.model, held, self.options.window, self._device)
        self._train(draft.model, windows, seed, tell)
        self.after = agreement(draft.model, held, self.options.window, self._device)
        better = self.after > self.before
        self._trained = draft if better else None
        return better

    def write(self, directory: Path) -> None:
        """Writes what was learned last, and learns on from there."""
        assert self._trained is not None, "only after a training that made it better"
        self._trained.write(directory)
        self._trained = None
        self._source_before, self.source = self.source, str(directory)

    def go_back(self) -> None:
        """Learns on from the checkpoint before the last one."""
        self.source = self._source_before

    def _train(self, model: nn.Module, windows: Sequence[Example], seed: int, tell: Callable[[str], None]) -> None:
        options = self.options
        mean = sum(len(each.tokens) for each in windows) / len(windows)
        per_step = min(len(windows), max(1, round(options.step_tokens / mean)))
        steps = min(options.steps, math.ceil(options.epochs * len(windows) / per_step))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        begun, told, pace = time.process_time(), time.monotonic(), Pace()
        model.train()
        for step in range(steps):
            spent = (time.process_time() - begun) / options.seconds
            if spent >= 1:
                break
            done = max(step / steps, spent)
            rate = options.learning_rate * min(1.0, (step + 1) / options.warmup) * (1 + math.cos(math.pi * done)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate
            chosen = batch_indices(step, per_step, len(windows), seed)
            loss = self._step(model, optimizer, [windows[index] for index in chosen])
            if time.monotonic() - told >= _TELL_SECONDS or step == steps - 1:
                told = time.monotonic()
                done = max((step + 1) / steps, spent)
                tell(f"step {step + 1} of {steps}, cross-entropy {loss:.3f} ({pace.of(done)})")

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, windows: Sequence[Example]) -> float:
        """Takes a step; the gradient is added up over batches. Returns the mean cross-entropy before it, in nats."""
        positions = sum(each.positions for each in windows)
        total = 0.0
        for part in batches(windows, self.options.window):
            batch = make_batch(part, self._device)
            logits = batch.logits(model).float()
            log_probs = logits.gather(1, batch.token_ids) - logits.logsumexp(1, keepdim=True)
            loss = -(batch.log_probs.exp() * log_probs).sum() / positions
            loss.backward()
            total += float(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total


def agreement(model: nn.Module, windows: Sequence[Example], most_tokens: int, device: str = "cpu") -> float:
    """Returns the share of the positions whose likeliest token is the text's next, in [0, 1]; 0 without positions."""
    model.eval()
    agreeing = 0
    for part in batches(windows, most_tokens):
        batch = make_batch(part, device)
        with torch.no_grad():
            agreeing += int((batch.logits(model).argmax(1) == batch.token_ids[:, 0]).sum())
    return agreeing / max(1, sum(each.positions for each in windows))


def batches(windows: Sequence[Example], most_tokens: int) -> Iterator[list[Example]]:
    """Yields the windows, by length, in batches that have at most so many tokens with their padding."""
    part: list[Example] = []
    for window in sorted(windows, key=lambda each: len(each.tokens)):
        if part and (len(part) + 1) * len(window.tokens) > most_tokens:
            yield part
            part = []
        part.append(window)
    if part:
        yield part
