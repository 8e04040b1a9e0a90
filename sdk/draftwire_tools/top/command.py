"""``draftwire top``: checks its options, and shows the verifiers on a terminal, as text or as JSON."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from draftwire._types.verifier import parse_verifiers
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import DEFAULT_VERIFIERS
from draftwire_tools.top.screen import Screen
from draftwire_tools.top.snapshot import Snapshot
from draftwire_tools.top.view import Layout, lines
from draftwire_tools.top.watch import watching

LEAST_SECONDS = 0.1
"""Least time between two readings."""
MOST_SECONDS = 3600.0

Watched = Annotated[
    list[str],
    typer.Option(
        "--verifier",
        metavar="HOST:PORT",
        envvar="DRAFTWIRE_VERIFIER",
        help="Address of a verifier; may be repeated, to see several side by side.",
    ),
]


@connecting
def top(
    verifier: Watched = DEFAULT_VERIFIERS,
    interval: Annotated[
        float, typer.Option(min=LEAST_SECONDS, max=MOST_SECONDS, help="Seconds between two readings.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Read for one interval, print the result, and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per reading, and nothing else.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Watch verifiers and their drafters live: requests, tokens per second, acceptance, the planner's decisions."""
    addresses = tuple(each.address for each in parse_verifiers(verifier))
    if math.isnan(interval):  # neither above nor below a bound
        raise ValueError("--interval: expected a number of seconds, got nan")
    asyncio.run(_run(addresses, connection.options(), interval, once, as_json))


async def _run(addresses: tuple[str, ...], options: dict[str, Any], interval: float, once: bool, as_json: bool) -> None:
    console = Console(highlight=False)
    async with watching(addresses, interval, **options) as watch:
        # What $FORCE_COLOR has rich call a terminal has no size, and nothing is drawn on one without a cursor.
        drawn = console.is_interactive and sys.stdout.isatty()
        if drawn and not once and not as_json:
            await Screen(console, watch).run()
            return
        while True:
            if once:
                await watch.read()  # rates need two
                await asyncio.sleep(interval)
            snapshot = await watch.read()
            _print(snapshot, interval, as_json)
            if once:
                break
            await asyncio.sleep(interval)
        if not watch.reached:
            raise Failure(f"no verifier could be reached at {', '.join(addresses)}")


def _print(snapshot: Snapshot, interval: float, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot.json()), flush=True)
        return
    for line in lines(snapshot, Layout(interval=interval)):
        print(line.plain)
    print()
    sys.stdout.flush()
