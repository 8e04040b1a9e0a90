"""Outputs, and where two of them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftwire._types.generation import Generation
from draftwire_tools.check.request import CheckRequest

_CONTEXT = 16
"""Tokens of a continuation that are shown."""


@dataclass(frozen=True, slots=True)
class Output:
    """Everything of an output that must not depend on speculation."""

    token_ids: tuple[int, ...]
    """Its tokens."""
    token_texts: tuple[str, ...]
    """The text of each token, for display."""
    text: str
    """Its text."""
    finish_reason: str
    """Why it ended."""
    logprobs: tuple[tuple[tuple[int, float], ...], ...]
    """For each token its log-probability and those of the likeliest tokens, if requested."""
    resumed_at: int = 0
    """Number of tokens before it, which its caller had already."""

    @classmethod
    def of(cls, generation: Generation, *, resumed_at: int = 0) -> Output:
        """Returns the output of a generation, which may be the rest of a resumed one."""
        return cls(
            tuple(generation.token_ids),
            tuple(generation.token_texts),
            generation.text,
            str(generation.finish_reason),
            tuple(
                tuple((entry.token_id, entry.logprob) for entry in (each.token, *each.top))
                for each in generation.logprobs
            ),
            resumed_at,
        )

    def after(self, tokens: int, text: str) -> Output:
        """Returns the rest of the output after so many tokens, whose text is ``text`` if that ends the whole one."""
        rest = text if self.text.endswith(text) else self.text
        return Output(
            self.token_ids[tokens:], self.token_texts[tokens:], rest, self.finish_reason, self.logprobs[tokens:]
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between an output and the plain one of the same request."""

    case: str
    """The case whose output differs."""
    what: str
    """The first thing that differs: token ids, log-probabilities, text or finish reason."""
    position: int
    """The first differing position: index of a token, or of a character for text."""
    plain: str
    """The plain continuation from there."""
    other: str
    """The other one."""
    request: dict[str, Any]
    """The request, to repeat it."""

    def to_json(self) -> dict[str, Any]:
        """Returns the difference as a JSON value."""
        return asdict(self)


def difference(case: str, request: CheckRequest, plain: Output, other: Output) -> Difference | None:
    """Returns the first difference between two outputs of a request; None if they are equal."""
    found = _first(plain, other)
    if found is None:
        return None
    what, position, ours, theirs = found
    return Difference(case, what, position, ours, theirs, request.to_json())


def _first(plain: Output, other: Output) -> tuple[str, int, str, str] | None:
    if plain.token_ids != other.token_ids:
        at = first_differing(plain.token_ids, other.token_ids)
        return "token ids", at, _tokens(plain, at), _tokens(other, at)
    if plain.logprobs != other.logprobs:
        at = first_differing(plain.logprobs, other.logprobs)
        return "log-probabilities", at, repr(plain.logprobs[at : at + 1]), repr(other.logprobs[at : at + 1])
    if plain.text != other.text:
        at = first_differing(plain.text, other.text)
        return "text", at, repr(plain.text[at : at + 60]), repr(other.text[at : at + 60])
    if plain.finish_reason != other.finish_reason:
        return "finish reason", len(plain.token_ids), plain.finish_reason, other.finish_reason
    return None


def first_differing(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """Returns the index of the first difference; the shorter length if one continues the other."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return min(len(ours), len(theirs))


def _tokens(output: Output, first: int) -> str:
    ids, texts = output.token_ids[first : first + _CONTEXT], output.token_texts[first : first + _CONTEXT]
    return f"{list(ids)} {''.join(texts)!r}" if ids else "(ended)"
