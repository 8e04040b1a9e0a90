"""The command: starts everything that serves a model, says where it is, and ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftwire.cli.serve.device import device_here
from draftwire.cli.serve.gateway_process import MODULE
from draftwire.cli.serve.plan import Plan, plan_of
from draftwire.cli.serve.running import Serving, serving
from draftwire.cli.service import check_services_installed, free_address


def serve(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The model to serve: a directory, a GGUF file or a hub id.")
    ],
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DRAFT",
            help="A draft model, or a drafter in the verifier such as local:mtp; may be repeated; else local:ngram.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the OpenAI-compatible endpoint and the console.")
    ] = "127.0.0.1:8000",
    verifier_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the verifier (gRPC). Port 0 picks a free one.")
    ] = "127.0.0.1:0",
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Chat template (Jinja) to use in place of the model's own.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads of all processes together; by default one a core.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            envvar="DRAFTWIRE_DEVICE",
            help="Device of the models: auto (a GPU if torch can use one), cpu, cuda or cuda:N.",
        ),
    ] = "auto",
    log: Annotated[Path, typer.Option(metavar="FILE", help="One log of all processes; lines are added.")] = Path(
        "draftwire.log"
    ),
) -> None:
    """Serve a model faster: verifier, drafters, OpenAI-compatible gateway and console, until Ctrl-C."""
    check_services_installed("draftwire serve", MODULE, "fastapi", "uvicorn", extra="serve,gateway")
    console = Console(highlight=False)
    place = device_here(device)
    console.print(f"{'device':9} {place.about}", soft_wrap=True)
    plan = plan_of(model, draft or (), threads, chat_template, place)
    try:
        with serving(plan, _with_port(listen), _with_port(verifier_listen), log, console) as running:
            _tell(plan, running, log, console)
            running.watch()
    except KeyboardInterrupt:
        console.print("stopped")


def _with_port(address: str) -> str:
    """Returns an address with a free port in place of port 0: the processes have to know each other's ports."""
    host, _, port = address.rpartition(":")
    return free_address(host) if port == "0" else address


def _tell(plan: Plan, running: Serving, log: Path, console: Console) -> None:
    """Says what is served, and where."""
    threads = f"{plan.verifier_threads} threads"
    if plan.drafts:
        threads += f", drafters {plan.drafter_threads}"
    lines = {
        "model": f"{plan.model} ({threads})",
        "drafters": ", ".join((*plan.drafts, *plan.local)),
        "endpoint": f"http://{running.gateway.address}/v1",
        "console": f"http://{running.gateway.address}/",
        "verifier": f"{running.verifier.address} (gRPC)",
        "log": str(log.resolve()),
    }
    for name, text in lines.items():
        console.print(f"{name:9} {text}", soft_wrap=True)
    console.print("serving; Ctrl-C stops it")
