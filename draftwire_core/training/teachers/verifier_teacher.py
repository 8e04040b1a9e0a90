"""A teacher that is a running verifier, used through the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from draftwire import Client
from draftwire_core.training.data.example import Example, example_of
from draftwire_core.training.teachers.teacher import Question

_CONCURRENCY = 8


class VerifierTeacher:
    """Generates by `Generate` and scores by `Score`, which the verifier must allow."""

    def __init__(self, address: str | Sequence[str], **options: Any):
        """Connects. `options` are those of `Client`, such as tls and token. Raises DraftwireError and ValueError."""
        self.client = Client(address, **options)
        info = self.client.model_info()
        self.tokenizer_sha256 = info.tokenizer_sha256
        self.fingerprint = info.fingerprint
        self.longest = info.limits.max_sequence_tokens
        self._pool = ThreadPoolExecutor(_CONCURRENCY, "draftwire-teacher")

    def answer(self, questions: Sequence[Question], top: int) -> list[Example]:
        """Continues the prompts and scores the continuations; see `Teacher`. Raises DraftwireError."""
        return list(self._pool.map(lambda question: self._answer(question, top), questions))

    def score(self, prompt: list[int], output: list[int], top: int) -> Example:
        """Returns the target's likeliest tokens along a known output. Raises DraftwireError."""
        predictions = self.client.score([*prompt, *output], top=top, first_position=len(prompt))
        return example_of(
            [*prompt, *output],
            len(prompt),
            [each.token_ids for each in predictions],
            [each.log_probs for each in predictions],
        )

    def close(self) -> None:
        """Closes the connection."""
        self._pool.shutdown(cancel_futures=True)
        self.client.close()

    def _answer(self, question: Question, top: int) -> Example:
        result = self.client.generate(
            question.prompt,
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            seed=question.seed,
        )
        return self.score(question.prompt, result.token_ids, top)
