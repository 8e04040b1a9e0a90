"""The command: starts the services, runs the story, stops the services."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftwire._sync.client import Client
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire_tools.demo.show import Asked, Show, bundled, find_models, real, running
from draftwire_tools.demo.story import LEAST_TOKENS, DemoReport, Silence, tell
from draftwire_tools.demo.terminal import Terminal
from draftwire_tools.loading import handle_signals, restore_signals
from draftwire_tools.packaged_file import FetchError
from draftwire_tools.service import check_services_installed
from draftwire_tools.small_model import fetched

CALL_SECONDS = 300.0


def demo(
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Models directory of a checkout; found when run in one.")
    ] = None,
    bundled_pair: Annotated[
        bool, typer.Option("--bundled", help="Use the bundled pair alone; nothing is downloaded.")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option(help="Question to answer; with --bundled, text to continue.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=LEAST_TOKENS, help="Most tokens to generate.")] = 200,
    temperature: Annotated[
        float | None,
        typer.Option(help="Softmax temperature; 0 is greedy. Default: 0.7, and 0 for the edit.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same text.")] = 1,
    as_json: Json = False,
) -> None:
    """Run a verifier and drafters, swap and kill drafters during requests, and compare with plain decoding.

    The target is SmolLM2-135M-Instruct, which is downloaded once (90 MB), or else, in a checkout, the bundled one.
    """
    directory = find_models(models, needed=bundled_pair)
    check_services_installed("the demo")
    console = Console(stderr=as_json, highlight=False)
    asked = Asked(prompt, max_tokens, temperature, seed)
    with ExitStack() as stack:
        stack.callback(restore_signals, handle_signals())  # so that a download and the services end with the command
        show = None if bundled_pair else enter_real(stack, directory, asked, console)
        if show is None:
            assert directory is not None  # otherwise enter_real has raised
            show = stack.enter_context(running(bundled(directory, asked), console, keeps_logs=True))
        terminal = Terminal(console, show.drafters)
        client = stack.enter_context(Client(show.verifier.address, timeout=CALL_SECONDS))
        finish(tell(client, show.model, show.scenes, Silence() if as_json else terminal), terminal, as_json)


def enter_real(stack: ExitStack, models: Path | None, asked: Asked, console: Console) -> Show | None:
    """Starts the show with the real model on a stack; if that fails, says why in a line and returns None.

    Raises:
        Failure: it fails, and there are no bundled models to show in its place.
    """
    try:
        start = real(fetched(console), models, asked)
        return stack.enter_context(running(start, console, keeps_logs=False))
    except (FetchError, Failure) as error:
        reason = " ".join(str(error).split())
        if models is None:
            raise Failure(f"no SmolLM2 ({reason}), and no bundled pair, which comes with a checkout") from error
        console.print(f"the bundled pair instead of SmolLM2: {reason}", soft_wrap=True, markup=False)
        return None


def finish(report: DemoReport, terminal: Terminal, as_json: bool) -> None:
    """Shows the report; ends the command with an error if a text differs."""
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        terminal.report(report)
    if not report.identical:
        raise Failure("the text with drafters differs from the text without")
