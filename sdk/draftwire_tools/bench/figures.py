"""Figures of a method for a setting, compared with plain decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftwire_tools.bench.comparison import Setting, Turn
from draftwire_tools.bench.method import Method
from draftwire_tools.spread import Spread
from draftwire_tools.turns import first_differing, quantile


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of times, in seconds."""

    p50: float
    """The median."""
    p95: float
    """The 95th percentile."""
    p99: float
    """The 99th percentile."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """Returns the percentiles by nearest rank, so that each is one of the values; None if there are none."""
        known = list(values)
        return cls(*(quantile(known, share) for share in (0.5, 0.95, 0.99))) if known else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one method for one setting."""

    method: Method
    """The method."""
    setting: Setting
    """Task and temperature."""
    requests: int
    """Requests of all runs."""
    runs: int
    """Runs; each contributes one value to a spread."""
    tokens_per_second: Spread
    """Tokens generated per second, time for prompts included."""
    speed_up: Spread
    """Tokens per second divided by plain decoding's, for the same requests of the same run."""
    draft_tokens: int
    """Draft tokens verified."""
    acceptance_rate: float | None
    """Accepted tokens / draft tokens verified; None if there were none."""
    acceptance_length: float
    """Tokens per verification, the bonus token included."""
    draft_share: float | None
    """Seconds of drafting at all drafters, per second of its requests; above 1 if several draft at once. None if a
    drafter service could not be asked."""
    rollback_share: float
    """Share of rollbacks in the time of the verifier's thread."""
    first_token: Percentiles | None
    """Time to the first token."""
    token_gap: Percentiles | None
    """Time between tokens; the tokens of a chunk share the time since the last chunk."""
    chunk_gap: Percentiles | None
    """Time between chunks, in which a reader sees nothing new."""
    differing: int
    """Outputs that differ from plain decoding's."""
    drift: float
    """Share of tokens at and after the first difference from plain decoding's output."""
    lossless: bool
    """Whether all outputs have the distribution of plain decoding's, as the verifier reported for each."""


def figures(turns: Iterable[Turn]) -> list[Figures]:
    """Returns the figures of all methods and settings, in order of appearance; plain decoding first."""
    settings: dict[Setting, dict[str, list[Turn]]] = {}
    for turn in turns:
        settings.setdefault(turn.setting, {}).setdefault(turn.method.name, []).append(turn)
    found: list[Figures] = []
    for by_method in settings.values():
        plain = next(ours for ours in by_method.values() if ours[0].method.is_plain)
        in_order = sorted(by_method.values(), key=lambda ours: not ours[0].method.is_plain)
        found += [_figures(ours, plain) for ours in in_order]
    return found


def _figures(turns: Sequence[Turn], plain: Sequence[Turn]) -> Figures:
    requests = [request for turn in turns for request in turn.requests]
    rates, plain_rates = _rates(turns), _rates(plain)
    drafted = sum(request.stats.draft_tokens for request in requests)
    drafting = [turn.spent.drafting for turn in turns if turn.spent.drafting is not None]
    pairs = _pairs(turns, plain)
    wrong = sum(len(theirs) - first_differing(ours, theirs) for ours, theirs in pairs)
    return Figures(
        method=turns[0].method,
        setting=turns[0].setting,
        requests=len(requests),
        runs=len(rates),
        tokens_per_second=Spread.of(list(rates.values())),
        speed_up=Spread.ratio(list(rates.values()), [plain_rates[run] for run in rates]),
        draft_tokens=drafted,
        acceptance_rate=sum(r.stats.accepted_tokens for r in requests) / drafted if drafted else None,
        acceptance_length=sum(r.stats.tokens for r in requests) / max(1, sum(r.stats.steps for r in requests)),
        draft_share=sum(drafting) / sum(t.seconds for t in turns) if len(drafting) == len(turns) else None,
        rollback_share=_share(sum(t.spent.rollback for t in turns), sum(t.spent.verifier for t in turns)),
        first_token=Percentiles.of(request.first_token_seconds for request in requests),
        token_gap=Percentiles.of(gap for request in requests for gap in request.token_gaps),
        chunk_gap=Percentiles.of(gap for request in requests for gap in request.chunk_gaps),
        differing=sum(ours != theirs for ours, theirs in pairs),
        drift=_share(wrong, sum(len(theirs) for _, theirs in pairs)),
        lossless=all(request.stats.lossless for request in requests),
    )


def _rates(turns: Iterable[Turn]) -> dict[int, float]:
    """Returns tokens per second by run."""
    tokens: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for turn in turns:
        tokens[turn.run] = tokens.get(turn.run, 0) + turn.tokens
        seconds[turn.run] = seconds.get(turn.run, 0.0) + turn.seconds
    return {run: tokens[run] / seconds[run] for run in tokens}


def _pairs(turns: Iterable[Turn], plain: Iterable[Turn]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns each output with plain decoding's."""
    wanted = {(turn.run, turn.number): turn.requests for turn in plain}
    return [
        (ours.token_ids, theirs.token_ids)
        for turn in turns
        for ours, theirs in zip(turn.requests, wanted[turn.run, turn.number], strict=True)
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
