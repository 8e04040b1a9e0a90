"""``draftwire drafters rollout``: gradual replacement of one drafter by another."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from draftwire._types.rollout import Rollout, RolloutSide
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.options import DEFAULT_VERIFIERS, Json, Verifiers
from draftwire.cli.results import json_of, print_table

rollout = typer.Typer(
    help="Give a drafter a share of another one's requests before it takes over.", no_args_is_help=True
)

New = Annotated[str, typer.Argument(metavar="NEW", help="Name of the new drafter.")]


def parse_share(text: str) -> float:
    """Returns a share in (0, 1]: ``0.1`` or ``10%``.

    Raises:
        ValueError: the text is not a share.
    """
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"--share: expected a number above 0 and up to 1, or a percentage, got {text!r}")
    return share


@rollout.command()
@connecting
def start(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Name of the current drafter.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name or address of the new drafter.")],
    share: Annotated[str, typer.Option(metavar="SHARE", help="Share of the requests: 10% or 0.1.")],
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Start a rollout, or change the share of a running one."""
    part = parse_share(share)
    with connection.client(verifier) as client:
        begun = client.drafters.rollout(old, new, part)
        _tell(begun, f"{begun.new.name} gets {begun.share:.3g} of the requests of {begun.old.name}", as_json)


@rollout.command()
@connecting
def status(verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection) -> None:
    """Show running rollouts, and those that ended recently."""
    with connection.client(verifier) as client:
        found = client.drafters.rollouts()
    if as_json:
        print(json.dumps(json_of(found)))
        return
    if not found:
        print("there is no rollout")
        return
    for index, each in enumerate(found):
        if index:
            print()
        _show(each)


@rollout.command()
@connecting
def promote(
    new: New, verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection
) -> None:
    """Let the new drafter take over, and wait until the old one is released."""
    with connection.client(verifier) as client:
        ended = client.drafters.promote(new)
        _tell(ended, f"{ended.new.name} took over from {ended.old.name}", as_json)


@rollout.command()
@connecting
def withdraw(
    new: New, verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection
) -> None:
    """Give the new drafter's requests back to the old one, and wait until the new one is released."""
    with connection.client(verifier) as client:
        ended = client.drafters.withdraw(new)
        _tell(ended, f"{ended.new.name} is withdrawn; {ended.old.name} continues", as_json)


def _show(found: Rollout) -> None:
    reason = f": {found.reason}" if found.reason else ""
    print(f"{found.old.name} -> {found.new.name}, share {found.share:.3g}, {found.state}{reason}")
    print_table(
        ("DRAFTER", "REQUESTS", "STEPS", "DRAFTED", "ACCEPTED", "PER STEP"),
        [_row(side) for side in (found.old, found.new)],
        "<>>>>>",
    )


def _row(side: RolloutSide) -> tuple[str, ...]:
    return (
        side.name,
        str(side.sequences),
        str(side.steps),
        str(side.draft_tokens),
        f"{side.acceptance_rate:.0%}" if side.draft_tokens else "-",
        f"{side.accepted_per_step:.2f}" if side.steps else "-",
    )


def _tell(found: Rollout, message: str, as_json: bool) -> None:
    print(json.dumps(json_of(found)) if as_json else message)
