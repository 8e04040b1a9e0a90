"""The target's predictions along a given text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from draftwire._messages.methods import SCORE
from draftwire._messages.off_loop import is_large, kept
from draftwire._messages.reading import Reader
from draftwire._messages.requests import token_prefix
from draftwire._messages.validation import token_ids, unsigned
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Prediction:
    """The target's likeliest tokens at one position, given all tokens before it, at temperature 1 without filters."""

    position: int
    """The position, from 1; the last one, equal to the text's length, is that of the token after the text."""
    token_ids: list[int]
    """The likeliest tokens, best first."""
    log_probs: list[float]
    """Natural log-probabilities of the tokens."""


class ScoreReader(Reader[pb.ScoreRequest, pb.ScoreResponse, list[Prediction]]):
    """Reads the distributions along a text. After a lost connection it continues with the next position."""

    method = SCORE
    finished = False

    def __init__(self, text: Iterable[int], top: int, first_position: int) -> None:
        """Starts before the first attempt, which raises TokenOutOfRangeError and TypeError for what is no token id.

        Raises:
            InvalidFieldError: a value cannot be encoded.
        """
        self._given = kept(text)
        self._top = unsigned("top", top)
        self._next = first_position
        unsigned("first_position", first_position)

    @property
    def large(self) -> bool:
        """Whether the text is large."""
        return is_large(self._given)

    @cached_property
    def _text(self) -> list[int]:
        return token_ids("token_ids", self._given)

    def key(self, size: int) -> bytes:
        """Returns the first bytes of the text."""
        return token_prefix(self._text, size)

    def next_request(self, *, resumable: bool) -> pb.ScoreRequest:
        """Returns the request for the distributions that have not been read."""
        return pb.ScoreRequest(token_ids=self._text, top=self._top, first_position=self._next)

    def read(self, response: pb.ScoreResponse) -> list[Prediction] | None:
        """Returns the distributions of a response."""
        top = response.top
        starts = range(0, len(response.token_ids), top) if top else range(0)
        found = [
            Prediction(
                response.first_position + index,
                list(response.token_ids[start : start + top]),
                list(response.log_probs[start : start + top]),
            )
            for index, start in enumerate(starts)
        ]
        self._next = response.first_position + len(found)
        self.finished = self._next > len(self._text)
        return found or None
