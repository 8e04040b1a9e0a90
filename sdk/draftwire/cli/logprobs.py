"""Log-probabilities as a table."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.cli.table import print_table
from draftwire.logprobs import TokenLogProb, TokenLogProbs


def print_logprobs(heading: str, logprobs: Sequence[TokenLogProbs | None]) -> None:
    """Print a line for each token; the first one of a prompt has none. ``heading`` says what they are tokens of."""
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
