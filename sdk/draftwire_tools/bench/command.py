"""The command: checks its options, starts services if asked to, measures, reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from draftwire._async.client import AsyncClient
from draftwire._types.model import VerifierInfo
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import DEFAULT_VERIFIERS
from draftwire_tools import interruption
from draftwire_tools.bench.comparison import Plan, Turn
from draftwire_tools.bench.figures import figures
from draftwire_tools.bench.machine import machine
from draftwire_tools.bench.method_pool import methods
from draftwire_tools.bench.plot import check_plotting, plot
from draftwire_tools.bench.prompt import BenchPrompt, bundled_prompts, read_prompts
from draftwire_tools.bench.report import Report
from draftwire_tools.bench.services import GGUF, Services, drafter_names, is_model, started
from draftwire_tools.progress import CountedLines
from draftwire_tools.service import check_services_installed

_CALL_SECONDS = 600.0


@connecting
def bench(
    verifier: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="DRAFTWIRE_VERIFIER", help="Address of the verifier to measure with."),
    ] = DEFAULT_VERIFIERS[0],
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Start a verifier with this target model, a directory or a GGUF file, instead of using --verifier.",
        ),
    ] = None,
    draft: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL",
            help="With --target: also start a drafter with this model, which may have another tokenizer; may be "
            "repeated.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Method to measure; may be repeated: a drafter's name, an address to attach meanwhile (local:suffix), "
            "prediction, or several joined by +; @RULE at the end sets the acceptance. Default: the attached drafters.",
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Prompts: JSON lines, or one text; may be repeated. Default: a checkout's own."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Most prompts per task.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens per request.")] = 128,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Softmax temperature; may be repeated. Default: 0 and 0.8.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 3,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first request.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a table in Markdown.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the speed-ups as PNG; requires matplotlib.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Compare speculation methods with plain decoding on the same requests, in turns."""
    check_files(json=json_file, markdown=markdown_file, plot=plot_file)
    if plot_file is not None:
        check_plotting()
    read = read_prompts(prompts, count) if prompts else bundled_prompts(count)
    plan = Plan(read, list(dict.fromkeys(temperature or (0.0, 0.8))), max_tokens, runs, concurrency, seed)
    console = Console(stderr=True, highlight=False)
    with services_for(verifier, target, draft or [], console, "draftwire bench --target") as services:
        options = connection.options() if target is None else {}  # what was started here needs none
        report = interruption.run(_measure(services, plan, method or [], console, options))
    try:
        report.show()
        sys.stdout.flush()  # before a file that cannot be written ends the command
    finally:  # the reader of the output may have left, as head does
        if json_file is not None:
            json_file.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        if markdown_file is not None:
            markdown_file.write_text(report.markdown(), encoding="utf-8")
        if plot_file is not None:
            plot(report.figures, plot_file)
    report.show_notes(lambda line: print(line, file=sys.stderr))
    if report.broken:
        raise Failure("outputs that must be equal differ")


def check_files(**files: Path | None) -> None:
    """Checks, before a comparison that may take hours, that the files that options of these names give can be written.

    Raises:
        ValueError: a file cannot be written.
    """
    for option, path in files.items():
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise ValueError(f"--{option} {path}: cannot write a file there")


@contextmanager
def services_for(
    verifier: str, target: Path | None, drafts: Sequence[Path], console: Console, command: str
) -> Iterator[Services]:
    """Yields the verifier at an address, or services that are started for a command.

    Raises:
        ValueError: a path has no model, or --draft is given without --target.
        Failure: a service cannot run here.
    """
    if target is None:
        if drafts:
            raise ValueError("--draft: requires --target; name a running drafter by its address instead")
        yield Services(verifier)
        return
    for option, model in (("--target", target), *(("--draft", draft) for draft in drafts)):
        if not is_model(model):
            raise ValueError(f"{option} {model}: contains no model; expected a directory or a {GGUF} file of one")
    drafter_names(drafts)
    check_services_installed(command)
    with started(target, drafts, console) as services:
        yield services


async def _measure(
    services: Services, plan: Plan, names: Sequence[str], console: Console, options: dict[str, Any]
) -> Report:
    async with AsyncClient(services.verifier, timeout=_CALL_SECONDS, **options) as client:
        for name, drafter in services.drafters.items():
            await client.drafters.attach(drafter.address, name, trusted=True)  # started here, from a model named here
        wanted = [*services.drafters, *names] if names else []
        info = await client.model_info()
        about = machine() | _about(info, plan, services.threads)
        refused = info.capabilities.refused if info.capabilities is not None else []
        async with methods(client, wanted, plan.predicted, refused) as found:
            columns = (TextColumn("measuring"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
            total = len(plan.slots(found))
            turns: list[Turn]
            if console.is_interactive:
                with Progress(*columns, console=console, transient=True) as bars:
                    bar = bars.add_task("", total=total)
                    turns = await plan.measure(client, found, lambda: bars.advance(bar))
            else:
                counted = CountedLines(partial(console.print, soft_wrap=True), "measuring", total)
                turns = await plan.measure(client, found, counted.advance)
        return Report(about, figures(turns), services.memory())


def _about(info: VerifierInfo, plan: Plan, threads: int | None) -> dict[str, str]:
    found = {
        "target": f"{info.model_id} ({info.parameters / 1e6:.3g} M, {info.dtype}, {info.device})",
        "verifier": info.build,
        "numerics": f"{info.numerics[:12]} ({info.numerics_description})" if info.numerics else "not reported",
        "prompts": ", ".join(f"{number} {task}" for task, number in _tasks(plan.prompts).items()),
        "max_tokens": str(plan.max_tokens),
        "runs": str(plan.runs),
        "concurrency": str(plan.concurrency),
        "seed": str(plan.seed),
    }
    return found if threads is None else found | {"threads of each service": str(threads)}


def _tasks(prompts: Sequence[BenchPrompt]) -> dict[str, int]:
    found: dict[str, int] = {}
    for prompt in prompts:
        found[prompt.task] = found.get(prompt.task, 0) + 1
    return found
