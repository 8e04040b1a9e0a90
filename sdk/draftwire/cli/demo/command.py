"""The command: starts the services, tells the story, stops the services."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import draftwire
from draftwire.cli.demo.service import Service, free_ports
from draftwire.cli.demo.story import DemoDrafter, Report, Silence, tell
from draftwire.cli.demo.terminal import Terminal
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire.client import Client
from draftwire.requests import GenerateOptions

VERIFIER, DRAFTER = "verifier_service", "drafter_service"
NEEDED = ("torch", "transformers", VERIFIER, DRAFTER)
TARGET, DRAFT, EARLY = "target", "draft", "draft-early"
STYLES = {EARLY: "bold cyan", DRAFT: "bold green"}
START_SECONDS = 120.0
CALL_SECONDS = 60.0
PROMPT = '''def read_config(path):
    """Read a configuration file and return its sections as a dictionary."""
'''


def demo(
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory with target, draft and draft-early.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.", show_default=False)] = PROMPT,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="Softmax temperature; 0 is greedy.")] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed; the same one gives the same text.")] = 1,
    as_json: Json = False,
) -> None:
    """Run a verifier and two drafters here, swap and kill drafters meanwhile, and compare with plain decoding."""
    directory = find_models(models)
    check_installed()
    console = Console(stderr=as_json, highlight=False)
    terminal = Terminal(console, STYLES)
    options: GenerateOptions = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": True,  # the request lasts long enough for all that is to happen
    }
    with running(directory, console) as (verifier, drafters), Client(verifier.address, timeout=CALL_SECONDS) as client:
        first, second = (DemoDrafter(d.name, d.address, d.kill) for d in drafters)
        report = tell(client, prompt, first, second, Silence() if as_json else terminal, options)
        finish(report, terminal, as_json)


def finish(report: Report, terminal: Terminal, as_json: bool) -> None:
    """Show the report; a text that differs ends the command with an error."""
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        terminal.report(report)
    if not report.identical:
        raise Failure("the text with drafters differs from the text without")


def find_models(given: Path | None) -> Path:
    """Return the directory of the demo's models.

    Raises:
        ValueError: none of the places has them.
    """
    checkout = Path(draftwire.__file__).resolve().parents[2]
    places = [given] if given is not None else [Path.cwd() / "models", checkout / "models"]
    for place in places:
        if all((place / name / "config.json").is_file() for name in (TARGET, DRAFT, EARLY)):
            return place
    looked = " or ".join(str(place) for place in places)
    raise ValueError(f"no {TARGET}, {DRAFT} and {EARLY} models in {looked}; say where they are with --models DIR")


def check_installed() -> None:
    """Check that the services can run here.

    Raises:
        Failure: something is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            f"the demo runs the services here and needs {', '.join(missing)}: pip install 'draftwire[serve]', "
            "or pip install -e '.[serve]' in a checkout"
        )


@contextmanager
def running(models: Path, console: Console) -> Iterator[tuple[Service, tuple[Service, Service]]]:
    """Run the services: the verifier, and the drafters in the order in which they take part."""
    logs = Path(tempfile.mkdtemp(prefix="draftwire-demo-"))
    services: list[Service] = []
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        ports = free_ports(3)
        services.append(Service(TARGET, VERIFIER, models / TARGET, ports[0], logs))
        services.append(Service(EARLY, DRAFTER, models / EARLY, ports[1], logs))
        services.append(Service(DRAFT, DRAFTER, models / DRAFT, ports[2], logs))
        wait_until_ready(services, console)
        verifier, early, draft = services
        yield verifier, (early, draft)
    except Exception:
        console.print(f"the services' logs are in {logs}", soft_wrap=True)
        raise
    except BaseException:
        shutil.rmtree(logs, ignore_errors=True)
        raise
    else:
        shutil.rmtree(logs, ignore_errors=True)
    finally:
        for service in services:
            service.terminate()
        for service in services:
            service.wait()
        signal.signal(signal.SIGTERM, before)


def wait_until_ready(services: list[Service], console: Console) -> None:
    """Wait until all services serve, with a bar for each.

    Raises:
        Failure: one has ended, or they take too long.
    """
    deadline = time.monotonic() + START_SECONDS
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        waiting = {
            service: progress.add_task(f"loading {service.name:12} at {service.address}", total=None)
            for service in services
        }
        while waiting:
            for service, task in list(waiting.items()):
                if service.is_ready():
                    progress.update(task, total=1, completed=1)
                    del waiting[service]
            if time.monotonic() > deadline:
                raise Failure(f"not ready after {START_SECONDS:.0f} s: {', '.join(s.name for s in waiting)}")
            time.sleep(0.05)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
