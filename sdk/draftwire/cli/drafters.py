"""``draftwire drafters``: the drafters of a verifier."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from draftwire.cli.options import DEFAULT_VERIFIERS, Json, Verifiers
from draftwire.cli.results import drafter_json
from draftwire.client import Client
from draftwire.drafters import Drafter

drafters = typer.Typer(help="Manage the drafters of a verifier while it runs.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the drafter.")]


@drafters.command("list")
def list_drafters(verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False) -> None:
    """Show all drafters."""
    with Client(verifier) as client:
        _show(client.drafters.list(), as_json)


@drafters.command()
def attach(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the verifier reaches the drafter.")],
    name: Annotated[str | None, typer.Option(help="Its name in the pool; by default its address.")] = None,
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
) -> None:
    """Connect a drafter; done when it is ready."""
    with Client(verifier) as client:
        drafter = client.drafters.attach(address, name)
        _tell(drafter, f"{drafter.name} is attached and {drafter.state}", as_json)


@drafters.command()
def detach(name: Name, verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False) -> None:
    """Remove a drafter; done when no request uses it."""
    with Client(verifier) as client:
        drafter = client.drafters.detach(name)
        _tell(drafter, f"{drafter.name} is detached", as_json)


@drafters.command()
def swap(
    old: Annotated[str, typer.Argument(help="Name of the drafter to release.")],
    new: Annotated[str, typer.Argument(help="Name, or address, of the one that takes over.")],
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
) -> None:
    """Move all requests from one drafter to another; done when the old one is released."""
    with Client(verifier) as client:
        done = client.drafters.swap(old, new)
        _tell(
            done.drafter,
            f"{done.drafter.name} took over from {old}, running requests moved: {done.moved_sequences}",
            as_json,
        )


@drafters.command()
def watch(verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False) -> None:
    """Show all drafters, now and after every change, until interrupted."""
    with Client(verifier) as client, client.drafters.watch() as states:
        for state in states:
            _show(state, as_json)


def _show(found: list[Drafter], as_json: bool) -> None:
    if as_json:
        print(json.dumps([drafter_json(drafter) for drafter in found]), flush=True)
        return
    if not found:
        print("no drafter is attached", flush=True)
        return
    rows = [_HEADINGS, *(_row(drafter) for drafter in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{_ALIGN[index]}{widths[index]}}" for index, cell in enumerate(row)).rstrip())
    for drafter in found:
        if drafter.last_error is not None:
            print(f"{drafter.name}: {drafter.last_error}")
    sys.stdout.flush()


# A name or an address is never cut, to be copied whole; where they have their usual lengths, a line has 80 columns.
_HEADINGS = ("NAME", "ADDRESS", "STATE", "REQUESTS", "DRAFTED", "ACCEPTED", "MS/STEP")
_ALIGN = "<<<>>>>"


def _row(drafter: Drafter) -> tuple[str, ...]:
    return (
        drafter.name,
        drafter.address,
        drafter.state,
        str(drafter.sequences),
        str(drafter.draft_tokens),
        f"{drafter.acceptance_rate:.0%}" if drafter.draft_tokens else "-",
        "-" if drafter.step_seconds is None else f"{drafter.step_seconds * 1000:.1f}",
    )


def _tell(drafter: Drafter, message: str, as_json: bool) -> None:
    print(json.dumps(drafter_json(drafter)) if as_json else message)
