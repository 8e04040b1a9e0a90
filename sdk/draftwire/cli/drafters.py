"""``draftwire drafters``: the drafters of a verifier."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from draftwire._types.drafter import Drafter
from draftwire._types.quoting import shortened
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import DEFAULT_VERIFIERS, Json, Labels, Verifiers, parse_labels
from draftwire.cli.results import json_of, print_table

drafters = typer.Typer(help="Manage the drafters of a verifier while it runs.", no_args_is_help=True)
for each in entry_points(group="draftwire.commands.drafters"):  # rollout and suggest, of `draftwire_tools`
    if isinstance(command := each.load(), typer.Typer):
        drafters.add_typer(command, name=each.name)
    else:
        drafters.command(each.name)(command)

Name = Annotated[str, typer.Argument(help="Name of the drafter.")]


@drafters.command("list")
@connecting
def list_drafters(verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection) -> None:
    """Show all drafters."""
    with connection.client(verifier) as client:
        _show(client.drafters.list(), as_json)


@drafters.command()
@connecting
def attach(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="HOST:PORT at which the verifier reaches it, or local:NAME.")
    ],
    name: Annotated[str | None, typer.Option(help="Name in the pool; by default the address.")] = None,
    label: Labels = None,
    trusted: Annotated[
        bool | None,
        typer.Option("--trusted/--untrusted", help="Whether it is trusted to draft for --acceptance rejection."),
    ] = None,
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Attach a drafter, and wait until it is ready."""
    labels = parse_labels(label)
    with connection.client(verifier) as client:
        drafter = client.drafters.attach(address, name, labels, trusted=trusted)
        _tell(drafter, f"{drafter.name} is attached and {drafter.state}", as_json)


@drafters.command()
@connecting
def detach(
    name: Name, verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection
) -> None:
    """Detach a drafter, and wait until no request uses it."""
    with connection.client(verifier) as client:
        drafter = client.drafters.detach(name)
        _tell(drafter, f"{drafter.name} is detached", as_json)


@drafters.command()
@connecting
def swap(
    old: Annotated[str, typer.Argument(help="Name of the drafter to replace.")],
    new: Annotated[str, typer.Argument(help="Name or address of the drafter that takes over.")],
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Move all requests from one drafter to another, and wait until the old one is released."""
    with connection.client(verifier) as client:
        done = client.drafters.swap(old, new)
        _tell(
            done.drafter,
            f"{done.drafter.name} took over from {old}; running requests moved: {done.moved_sequences}",
            as_json,
        )


@drafters.command("load-model")
@connecting
def load_model(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the drafter service.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory on the drafter's machine, or a hub id.")],
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Return only when the model is served or has failed to load. An interrupt, or the end of --timeout, "
            "cancels the load.",
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Longest time to wait, in seconds.")] = 600.0,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Replace the model of a drafter service while it drafts."""
    with connection.client(address) as client:
        load = client.drafters.load_model(address, model, wait=wait, timeout=timeout)
    if load.state == "failed":
        raise Failure(f"{model} could not be loaded: {load.error}")
    told = {"loading": "is being loaded", "serving": "is served"}.get(load.state, f"is {load.state}")
    print(json.dumps(json_of(load)) if as_json else f"{load.model} {told}")


@drafters.command()
@connecting
def watch(verifier: Verifiers = DEFAULT_VERIFIERS, as_json: Json = False, *, connection: Connection) -> None:
    """Show all drafters now and after every change, until interrupted."""
    with connection.client(verifier) as client, client.drafters.watch() as states:
        for state in states:
            _show(state, as_json)


def _show(found: list[Drafter], as_json: bool) -> None:
    if as_json:
        print(json.dumps(json_of(found)), flush=True)
        return
    if not found:
        print("no drafter is attached", flush=True)
        return
    labelled = any(drafter.labels for drafter in found)
    columns = len(_HEADINGS) if labelled else len(_HEADINGS) - 1
    print_table(_HEADINGS[:columns], [_row(drafter)[:columns] for drafter in found], _ALIGN)
    for drafter in found:
        if drafter.last_error is not None:
            print(f"{drafter.name}: {drafter.last_error}")
    sys.stdout.flush()


# A name or an address is never cut, to be copied whole.
_LONGEST_MODEL = 40
_HEADINGS = ("NAME", "ADDRESS", "STATE", "MODEL", "REQS", "DRAFTED", "ACCEPTED", "MS/STEP", "ACC/S", "LABELS")
_ALIGN = "<<<<>>>>><"


def _row(drafter: Drafter) -> tuple[str, ...]:
    return (
        drafter.name,
        drafter.address,
        drafter.state,
        shortened(drafter.model.model_id, _LONGEST_MODEL) if drafter.model is not None else "-",
        str(drafter.sequences),
        str(drafter.draft_tokens),
        f"{drafter.acceptance_rate:.0%}" if drafter.draft_tokens else "-",
        "-" if drafter.step_seconds is None else f"{drafter.step_seconds * 1000:.1f}",
        f"{drafter.accepted_per_second:.0f}" if drafter.accepted_per_second else "-",
        ",".join(f"{key}={value}" for key, value in sorted(drafter.labels.items())),
    )


def _tell(drafter: Drafter, message: str, as_json: bool) -> None:
    print(json.dumps(json_of(drafter)) if as_json else message)
