"""``draftwire drafters suggest``: drafters for a target, before it is served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftwire.cli.failure import check_installed
from draftwire.cli.options import Json
from draftwire_tools.suggested import suggested

_NEEDED = ("draftwire_core", "huggingface_hub", "gguf")


def suggest(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The target: a directory, a GGUF file or a hub id; it is not loaded.")
    ],
    device: Annotated[str, typer.Option(help="Device of the target: cpu, or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Show which drafter `draftwire serve` would choose for a target, the alternatives, and why."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device: must be cpu, cuda or cuda:N, got {device!r}")
    check_installed("draftwire drafters suggest reads models here and", _NEEDED)
    found = suggested(model, device, fetch=False)
    if as_json:
        print(json.dumps(found))
    else:
        show(found, Console(highlight=False))


def show(found: Mapping[str, Any], console: Console) -> None:
    """Prints the candidates as a table, with the reasons below it."""
    console.print(target_line(found), soft_wrap=True, markup=False)
    candidates = found["candidates"]
    table = Table()
    for title in ("DRAFTER", "CHOICE", "DOWNLOAD", "MEMORY", "GAIN"):
        table.add_column(title, justify="right" if title in ("DOWNLOAD", "MEMORY", "GAIN") else "left")
    first = next((each for each in candidates if each["fits"]), None)
    for each in candidates:
        lookup = each["kind"] == "lookup"
        choice = "no" if not each["fits"] else "always" if lookup else "chosen" if each is first else "otherwise"
        gain = "by text" if lookup else "" if each["gain"] is None else f"{each['gain']:.1f}x"
        sizes = [_size(each[field]) for field in ("fetch_bytes", "memory_bytes")]
        table.add_row(each["name"], choice, *sizes, gain)
    console.print(table)
    for each in candidates:
        licence = f"; licence {each['licence']}" if each["licence"] else ""
        checked = f"; checked: {each['checked']}" if each["checked"] else ""
        console.print(
            f"{each['name']} ({each['kind']}): {each['reason']}{licence}{checked}", soft_wrap=True, markup=False
        )
    console.print(f"gain: {found['how']}", soft_wrap=True, markup=False)
    console.print("A drafter that does not pay is put to rest while it serves; draftwire bench measures it.")


def target_line(found: Mapping[str, Any]) -> str:
    """Returns what is known of the target."""
    parts = [found["architecture"] or "unknown architecture"]
    parts += [f"{found['layers']} layers"] if found["layers"] else []
    parts += [f"{found['vocabulary']} tokens"] if found["vocabulary"] else []
    parts += [f"{_size(found['bytes_per_token'])} of weights read for a token"] if found["bytes_per_token"] else []
    return f"target: {', '.join(parts)}"


def _size(size: int) -> str:
    if not size:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
