"""The parts of a response chunk that come from engine results: rejected draft tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwire.v1.token_log_probs_pb2 import TokenLogProb, TokenLogProbs
from draftwire.v1.verifier_service_pb2 import GenerateResponse
from draftwire_core.engine.engine.step_result import RejectedDraft
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.token_texts import TokenTexts
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.drafter.source import drafter_of

MOST_REJECTED = 256
"""Most rejected draft tokens in one chunk, which grows while its caller does not read."""


class PendingChunk:
    """The output that a caller has not taken yet. It becomes a message only then: each access to a message's fields
    costs as much as several to lists."""

    __slots__ = (
        "_drafters",
        "_rejected",
        "_sources",
        "_text_offsets",
        "_token_texts",
        "log_probs",
        "text",
        "token_ids",
    )

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        """The text that became final with the tokens."""
        self.log_probs: list[LogProbs] = []
        """Numbers of each token, if asked for. Messages would take several times the memory while nobody reads them."""
        self._token_texts: list[str] = []
        self._sources: list[int] = []
        self._text_offsets: list[int] = []
        self._drafters: list[str] = []
        self._rejected: list[dict[str, Any]] = []

    def add(self, token: int, text: str, drafter: str | None, offset: int) -> None:
        """Adds a token. text: of the token alone. drafter: that drafted it; None for the target's own. offset: number
        of characters of the output before it."""
        self.token_ids.append(token)
        self._token_texts.append(text)
        self._sources.append(0 if drafter is None else self._number(drafter))
        self._text_offsets.append(offset)

    def add_rejected(self, rejected: Sequence[RejectedDraft], tokenizer: Tokenizer) -> None:
        """Adds rejected draft tokens, up to the limit."""
        self._rejected += [
            {
                "token_id": draft.token,
                "text": tokenizer.shown(draft.token),
                "source": self._number(drafter_of(draft.source)),
                "position": draft.position,
                "depth": draft.depth,
            }
            for draft in rejected[: MOST_REJECTED - len(self._rejected)]
        ]

    def message(self, texts: TokenTexts) -> GenerateResponse:
        """Returns the message. texts: of the tokens with log-probabilities."""
        fields: dict[str, Any] = {
            "token_ids": self.token_ids,
            "text": self.text,
            "sources": self._sources,
            "token_texts": self._token_texts,
            "text_offsets": self._text_offsets,
        }
        if self._drafters:
            fields["drafters"] = self._drafters
        if self.log_probs:
            fields["log_probs"] = [each for told in self.log_probs for each in log_prob_messages(told, texts)]
        if self._rejected:
            fields["rejected"] = self._rejected
        return GenerateResponse(chunk=fields)

    def _number(self, drafter: str) -> int:
        if drafter not in self._drafters:
            self._drafters.append(drafter)
        return self._drafters.index(drafter) + 1


def log_prob_messages(told: LogProbs, texts: TokenTexts) -> list[TokenLogProbs]:
    """Returns one message per token."""

    def message(token: int, log_prob: float) -> TokenLogProb:
        text, text_bytes = texts.of(token)
        return TokenLogProb(token_id=token, log_prob=log_prob, text=text, text_bytes=text_bytes)

    columns = (told.token_ids, told.log_probs, told.ranks, told.top_ids, told.top_log_probs)
    return [
        TokenLogProbs(
            token=message(token, log_prob),
            rank=rank,
            top=[message(*pair) for pair in zip(top_ids, top_log_probs, strict=True) if pair[0] >= 0],
        )
        for token, log_prob, rank, top_ids, top_log_probs in zip(*(each.tolist() for each in columns), strict=True)
    ]
