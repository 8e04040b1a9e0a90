"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire._types.logprobs import TokenLogProb, TokenLogProbs


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> None:
    """Prints rows under headings; ``align`` has ``<`` or ``>`` for each column. No cell is ever cut."""
    rows = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{align[index]}{widths[index]}}" for index, cell in enumerate(row)).rstrip())


def print_logprobs(heading: str, logprobs: Sequence[TokenLogProbs | None]) -> None:
    """Prints a line per token, except for the first token of a prompt. ``heading`` names the text."""
    rows = [
        (
            _spelled(each.token),
            f"{each.token.logprob:.4f}",
            str(each.rank),
            " ".join(f"{_spelled(top)} {top.logprob:.4f}" for top in each.top),
        )
        for each in logprobs
        if each is not None
    ]
    print_table((heading, "LOGPROB", "RANK", "LIKELIEST"), rows, "<>><")


def _spelled(token: TokenLogProb) -> str:
    return repr(token.text)
