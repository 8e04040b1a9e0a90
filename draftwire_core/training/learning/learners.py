"""The drafters that learn while they serve: a draft model from texts, a recurrent head from the target's states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftwire import Client
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.seats.learning_address import HEAD, LearningAddress
from draftwire_core.training.learning.state_learner import StateLearner
from draftwire_core.training.learning.text_learner import TextLearner, TextTraining
from draftwire_core.training.learning.texts.draft_text import DraftText
from draftwire_core.training.learning.texts.top_tokens import TopTokens


class LiveLearner(Protocol):
    """A drafter in training, on texts of the target."""

    source: str
    """The checkpoint that it learns on from; empty for a head that knows nothing yet."""
    before: float
    after: float
    """Agreement on held-out texts before and after the last training: the share of their tokens that it finds
    likeliest."""
    measured: int
    """Held-out tokens on which it was measured."""
    quantised: bool
    """Whether the checkpoint that was loaded last has quantised weights."""

    def example(self, prompt: list[int], output: list[int], top: TopTokens | None = None) -> DraftText | None:
        """Returns a text as the drafter reads it; None if there is nothing to learn in it. top: the target's likeliest
        tokens at the positions of the output, if they are known."""

    def learn(
        self, learned: Sequence[DraftText], held_out: Sequence[DraftText], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether the agreement on held-out texts is better than before. Raises ModelLoadError."""

    def write(self, directory: Path) -> None:
        """Writes what was learned last. Raises OSError."""

    def go_back(self) -> None:
        """Is called if the last checkpoint was not worth its cost."""


@dataclass(frozen=True, slots=True)
class Learners:
    """Makes what learns."""

    training: TextTraining
    device: str = "cpu"
    target_tokenizer: Callable[[], Tokenizer] | None = None
    """Loads the target's tokenizer, which is needed for a draft model with another one."""
    target: str | None = None
    """Directory, GGUF file or hub id of the target, which is needed for a head."""

    def make(self, base: str, source: str, tokenizer_sha256: str, client: Client) -> LiveLearner:
        """Returns what learns on from a checkpoint.

        base: address or checkpoint of the base. source: the checkpoint. tokenizer_sha256: hash of the target's
        tokenizer. client: of the verifier. Raises ValueError for an option that is missing, and ModelLoadError.
        """
        address = LearningAddress.parse(base)
        if address is None or address.method != HEAD:
            return TextLearner(source, self._other_tokenizer(source, tokenizer_sha256), self.training, self.device)
        if self.target is None:
            raise ValueError("--target: is needed, because a head learns from the target's hidden states")
        return StateLearner(source, self.target, self.training, self.device, client)

    def _other_tokenizer(self, source: str, sha256: str) -> Tokenizer | None:
        """Returns the target's tokenizer, which has this hash, if a draft model has another one. Raises ValueError."""
        if Tokenizer.load(source).sha256 == sha256:
            return None
        if self.target_tokenizer is None:
            raise ValueError(f"--target-tokenizer: is needed, because {source} has another tokenizer than the target")
        target = self.target_tokenizer()
        if target.sha256 != sha256:
            raise ValueError("--target-tokenizer: is not the tokenizer of the verifier's target")
        return target
