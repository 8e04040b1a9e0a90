"""Who tells what a draft model is to learn: a target, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draft_training.data.example import Example


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that the target is to continue."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int


class Teacher(Protocol):
    """A target that continues prompts and tells what it holds likely."""

    tokenizer_sha256: str
    """Of its tokenizer; the draft's has to be the same."""
    fingerprint: str
    """Another one for another target."""
    longest: int
    """Most tokens of prompt and output together."""

    def answer(self, questions: Sequence[Question], top: int) -> list[Example]:
        """Continues each prompt, and returns `top` tokens at each position of the continuation and after it."""

    def close(self) -> None:
        """Gives up what the teacher holds."""
