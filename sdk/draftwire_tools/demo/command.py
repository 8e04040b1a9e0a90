"""The command: starts the services, runs the story, stops the services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import draftwire
from draftwire._sync.client import Client
from draftwire._types.options import GenerateOptions
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire_tools.demo.running import DRAFT, EARLY, INFLATE, TARGET, running
from draftwire_tools.demo.story import LEAST_TOKENS, DemoDrafter, DemoReport, Silence, tell
from draftwire_tools.demo.terminal import Terminal
from draftwire_tools.service import check_services_installed

STYLES = {EARLY: "bold cyan", DRAFT: "bold green"}
CALL_SECONDS = 300.0
PROMPT = '''def read_config(path):
    """Read a configuration file and return its sections as a dictionary."""
'''


def demo(
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Models directory of a checkout; found when run in one.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.", show_default=False)] = PROMPT,
    max_tokens: Annotated[int, typer.Option(min=LEAST_TOKENS, help="Tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="Softmax temperature; 0 is greedy.")] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same text.")] = 1,
    as_json: Json = False,
) -> None:
    """Run a verifier and two drafters, swap and kill drafters during a request, and compare with plain decoding."""
    directory = find_models(models)
    check_services_installed("the demo")
    console = Console(stderr=as_json, highlight=False)
    terminal = Terminal(console, STYLES)
    options: GenerateOptions = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": True,  # the request lasts long enough for all that is to happen
    }
    with running(directory, console) as (verifier, drafters), Client(verifier.address, timeout=CALL_SECONDS) as client:
        first, second = (DemoDrafter(drafter.name, drafter.address, drafter.kill) for drafter in drafters)
        report = tell(client, prompt, first, second, Silence() if as_json else terminal, options)
        finish(report, terminal, as_json)


def finish(report: DemoReport, terminal: Terminal, as_json: bool) -> None:
    """Shows the report; ends the command with an error if the texts differ."""
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        terminal.report(report)
    if not report.identical:
        raise Failure("the text with drafters differs from the text without")


def find_models(given: Path | None) -> Path:
    """Returns the directory of the demo's models.

    Raises:
        ValueError: none of the places has them.
    """
    needed = (INFLATE, *(f"{name}/config.json" for name in (TARGET, DRAFT, EARLY)))
    checkout = Path(draftwire.__file__).resolve().parents[2]
    places = [given] if given is not None else [Path.cwd() / "models", checkout / "models"]
    for place in places:
        if all((place / name).is_file() for name in needed):
            return place
    looked = " or ".join(str(place) for place in places)
    raise ValueError(
        f"the demo's models ({TARGET}, {DRAFT}, {EARLY}) and {INFLATE} are not in {looked}; they come with a checkout "
        "of draftwire: run the demo in one, or name its models directory with --models DIR"
    )
