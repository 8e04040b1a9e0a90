"""Interface of a teacher: a target that a draft model learns from, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwire_core.training.data.example import Example


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt for the target to continue."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int


class Teacher(Protocol):
    """A target that continues prompts and reports its likeliest tokens."""

    tokenizer_sha256: str
    """Hash of its tokenizer; the draft model's must be the same."""
    fingerprint: str
    """Fingerprint of the target."""
    longest: int
    """Most tokens of prompt and output together."""

    def answer(self, questions: Sequence[Question], top: int) -> list[Example]:
        """Continues each prompt, and returns `top` tokens at each position of the continuation and after it."""

    def close(self) -> None:
        """Releases the teacher's resources."""
