"""A draft model that learns from the traffic, as a running verifier scores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from draftwire.errors import AtCapacityError
from draftwire_core.training.data.example import Example
from draftwire_core.training.distillation.acceptance import measure
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.distillation.trainer import DistillationOptions, Trainer
from draftwire_core.training.teachers.verifier_teacher import VerifierTeacher
from draftwire_tools.progress import Pace

_TELL_EVERY = 50
"""Steps between two lines of progress."""


class DraftLearner:
    """A Learner (see `learner.Learner`) whose examples hold the target's likeliest tokens."""

    def __init__(self, draft: Draft, teacher: VerifierTeacher, training: DistillationOptions, top: int):
        """top: tokens learned from each distribution."""
        self.draft = draft
        self.source, self.tokenizer_sha256 = draft.source, draft.tokenizer.sha256
        self.context_length = draft.context_length
        self._teacher = teacher
        self._training = training
        self._top = top
        self._weights_before: dict[str, Tensor] = {}

    def example(self, prompt: list[int], output: list[int]) -> Example | None:
        """Returns the scored text; None if the verifier is busy, or if the draft model lacks one of the tokens."""
        try:
            scored = self._teacher.score(prompt, output, self._top)
        except AtCapacityError:
            return None  # other requests will follow
        most = max(int(scored.token_ids.max()), int(scored.tokens.max()))
        return scored if most < self.draft.vocab_size else None

    def learn(
        self, learned: Sequence[Example], held_out: Sequence[Example], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether more of the held-out draws are accepted. If not, restores the weights."""
        model, size, device = self.draft.model, self._training.batch_size, self.draft.device
        self._weights_before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        before = measure(model, held_out, batch_size=size, device=device)
        trainer = Trainer(model, replace(self._training, seed=seed), device=device)
        steps, pace = self._training.steps, Pace()
        while not trainer.done:
            loss = trainer.step(learned.__getitem__, len(learned))
            if trainer.steps % _TELL_EVERY == 0 or trainer.done:
                words = f"step {trainer.steps} of {steps}, {self._training.divergence} {loss:.4f}"
                tell(f"{words} ({pace.of(trainer.steps / steps)})")
        after = measure(model, held_out, batch_size=size, device=device)
        tell(f"held-out acceptance: before {before}; after {after}")
        if after.coupled <= before.coupled:
            self.go_back()
            return False
        return True

    def write(self, directory: Path) -> None:
        """Writes the draft model."""
        self.draft.write(directory)

    def go_back(self) -> None:
        """Restores the weights from before the last training."""
        self.draft.model.load_state_dict(self._weights_before)
