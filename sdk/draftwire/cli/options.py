"""Options several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Verifiers = Annotated[
    list[str],
    typer.Option(
        "--verifier",
        metavar="HOST:PORT",
        envvar="DRAFTWIRE_VERIFIER",
        help="Address of a verifier; give several to fail over between them.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

DEFAULT_VERIFIERS = ["localhost:50051"]
