"""The command: checks a drafter and prints what was found."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from draftwire._types.address import check_address
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire_tools import interruption
from draftwire_tools.check_drafter.check import check
from draftwire_tools.check_drafter.verifier_side import Patience
from draftwire_tools.progress import LINE_SECONDS, status

_DRAFT_SECONDS = 1.0
_QUIET_SECONDS = 0.2


@connecting
def check_drafter(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the drafter service.")],
    vocab_size: Annotated[
        int, typer.Option(min=0, help="Number of its token ids, if the drafter does not report it; 0: unknown.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for an answer that the protocol demands.")
    ] = 30.0,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Try a running drafter against the rules of docs/protocol.md. Exit status 1 if it breaks one."""
    check_address(address)
    patience = Patience(timeout, min(_DRAFT_SECONDS, timeout), min(_QUIET_SECONDS, timeout))
    options = connection.options()
    with status(Console(stderr=True, highlight=False), "trying", LINE_SECONDS) as shown:
        report = interruption.run(check(address, patience, vocab_size=vocab_size, progress=shown, **options))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        for line in report.lines():
            print(line)
    failed = report.failed()
    if failed:
        raise Failure(f"{address} breaks {len(failed)} of {len(report.findings)} rules")
