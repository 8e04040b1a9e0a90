"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

Verifiers = Annotated[
    list[str],
    typer.Option(
        "--verifier",
        metavar="HOST:PORT",
        envvar="DRAFTWIRE_VERIFIER",
        help="Address of a verifier, optionally with ?weight=2; may be repeated. Several verifiers, or the addresses "
        "of one name, share the requests and take over for each other.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Label of drafters, for example domain=code; may be repeated."),
]

DEFAULT_VERIFIERS = ["localhost:50051"]


def parse_labels(texts: Iterable[str] | None) -> dict[str, str]:
    """Returns labels given as ``KEY=VALUE``.

    Raises:
        ValueError: a text is not of that form, or a key is given twice.
    """
    labels: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"--label: expected KEY=VALUE, got {text!r}")
        if key in labels:
            raise ValueError(f"--label: {key} is given twice")
        labels[key] = value
    return labels


def parse_logit_bias(texts: Iterable[str] | None) -> dict[int, float]:
    """Returns logit biases given as ``ID=VALUE``.

    Raises:
        ValueError: a text is not of that form, or a token is given twice.
    """
    bias: dict[int, float] = {}
    for text in texts or ():
        token, _, value = text.partition("=")
        try:
            token_id, number = int(token), float(value)
        except ValueError:
            raise ValueError(f"--logit-bias: expected ID=VALUE, got {text!r}") from None
        if token_id in bias:
            raise ValueError(f"--logit-bias: {token_id} is given twice")
        bias[token_id] = number
    return bias
