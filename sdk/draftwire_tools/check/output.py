"""Outputs, and where two of them differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from draftwire._types.generation import Generation
from draftwire_tools.check.request import CheckRequest
from draftwire_tools.turns import first_differing

_CONTEXT = 16
"""Tokens of a continuation that are shown."""
_SHOWN = 60
"""Characters of other values that are shown."""


@dataclass(frozen=True, slots=True)
class Output:
    """Everything of an output that must not depend on speculation."""

    token_ids: tuple[int, ...]
    """The output's tokens."""
    token_texts: tuple[str, ...]
    """The text of each token on its own."""
    text: str
    """The output's text."""
    finish_reason: str
    """Why it ended."""
    logprobs: tuple[tuple[tuple[int, float], ...], ...]
    """For each token its log-probability and those of the likeliest tokens, if requested."""
    more: tuple[tuple[str, Any], ...] = ()
    """Further values with their names, such as what ended it or a prompt's log-probabilities."""
    resumed_at: int = 0
    """Number of tokens before it, which its caller had already."""
    cached: bool = field(default=False, compare=False)
    """Whether it began from the prefix cache."""
    resumes: int = field(default=0, compare=False)
    """Times that it was interrupted and resumed."""

    @classmethod
    def of(cls, generation: Generation, *, resumed_at: int = 0) -> Output:
        """Returns the output of a generation, which may be the rest of a resumed one."""
        more: list[tuple[str, Any]] = [("end", (generation.stop, generation.stop_token_id))]
        if not resumed_at:
            more += [("text offsets", tuple(generation.text_offsets)), ("prompt", generation.prompt)]
        if generation.further:
            more.append(("further results", [cls.of(each) for each in generation.further]))
        return cls(
            tuple(generation.token_ids),
            tuple(generation.token_texts),
            generation.text,
            str(generation.finish_reason),
            tuple(
                tuple((entry.token_id, entry.logprob) for entry in (each.token, *each.top))
                for each in generation.logprobs
            ),
            tuple(more),
            resumed_at,
            generation.usage.cached_tokens > 0,
            generation.resumes,
        )

    def after(self, tokens: int, text: str) -> Output:
        """Returns the rest of the output after so many tokens, whose text is ``text`` if that ends the whole one."""
        return replace(
            self,
            token_ids=self.token_ids[tokens:],
            token_texts=self.token_texts[tokens:],
            text=text if self.text.endswith(text) else self.text,
            logprobs=self.logprobs[tokens:],
            more=tuple((name, value) for name, value in self.more if name == "end"),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between an output and the plain one of the same request."""

    case: str
    """The case whose output differs."""
    what: str
    """The first thing that differs: token ids, log-probabilities, texts, finish reason, or a further value."""
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
    found = first_difference(plain, other)
    return None if found is None else Difference(case, *found, request.to_json())


def first_difference(plain: Output, other: Output) -> tuple[str, int, str, str] | None:
    """Returns what differs first, its position, and both continuations; None if the outputs are equal."""
    if plain.token_ids != other.token_ids:
        at = first_differing(plain.token_ids, other.token_ids)
        return "token ids", at, _tokens(plain, at), _tokens(other, at)
    if plain.logprobs != other.logprobs:
        at = first_differing(plain.logprobs, other.logprobs)
        return "log-probabilities", at, repr(plain.logprobs[at : at + 1]), repr(other.logprobs[at : at + 1])
    if plain.token_texts != other.token_texts:
        at = first_differing(plain.token_texts, other.token_texts)
        return "token texts", at, repr(plain.token_texts[at : at + 1]), repr(other.token_texts[at : at + 1])
    if plain.text != other.text:
        at = first_differing(plain.text, other.text)
        return "text", at, repr(plain.text[at : at + _SHOWN]), repr(other.text[at : at + _SHOWN])
    end = len(plain.token_ids)
    if plain.finish_reason != other.finish_reason:
        return "finish reason", end, plain.finish_reason, other.finish_reason
    if plain.more != other.more:
        ours, theirs = dict(plain.more), dict(other.more)
        what = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        one, two = repr(ours.get(what)), repr(theirs.get(what))
        at = max(0, first_differing(one, two) - _SHOWN)
        return what, end, one[at : at + 2 * _SHOWN], two[at : at + 2 * _SHOWN]
    return None


def log_prob_gap(plain: Output, other: Output) -> float:
    """Returns the largest distance of the log-probabilities that two outputs with the same tokens give a token; 0 for
    other tokens."""
    if plain.token_ids != other.token_ids:
        return 0.0
    places = zip(plain.logprobs, other.logprobs, strict=False)
    pairs = ((dict(one), dict(two)) for one, two in places)
    return max((abs(one[token] - two[token]) for one, two in pairs for token in one.keys() & two.keys()), default=0.0)


def _tokens(output: Output, first: int) -> str:
    ids, texts = output.token_ids[first : first + _CONTEXT], output.token_texts[first : first + _CONTEXT]
    return f"{list(ids)} {''.join(texts)!r}" if ids else "(ended)"
