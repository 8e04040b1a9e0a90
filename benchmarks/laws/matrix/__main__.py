"""Compares each option of requests, with each kind of drafter, alone, in a batch and resumed, with plain output.

    python -m benchmarks.laws.matrix [--prompts 3] [--heads DIR] [--eagle3 DIR] [--dflash DIR] [--page FILE]

Real services: a verifier of the bundled target with a chat template that knows tools and reasoning, a gateway, and a
drafter service. Every request is run plainly first. Then each drafter in turn is attached, and drafts in any case
(planning "always"): one request after another; all at once; and with the line to the verifier cut midway, so that the
request is resumed. Outputs have to be equal: tokens, texts, reasons, log-probabilities, tool calls, reasoning. A
predicted output needs no drafter: it is what the same request wrote plainly, with some letters changed in its middle.

--heads, --eagle3 and --dflash add drafters that were trained for the bundled target. --page writes the table
into a document's section "matrix". The exit status is 1 if a single output differs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.sections import with_section
from benchmarks.harness.services import Services, started
from benchmarks.harness.tcp_proxy import TcpProxy
from benchmarks.laws.matrix.endpoints import Endpoint
from benchmarks.laws.matrix.page import Cell, section
from benchmarks.laws.matrix.request_options import OPTIONS, TOKENS, ask
from draftwire import Speculation, SpeculationStats
from draftwire_tools.check.comparison import Comparison
from draftwire_tools.check.drafters import PLAIN
from draftwire_tools.check.output import Output
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import CheckRequest, check_requests
from tests.harness.checkout import MODELS
from tests.harness.models.chat_templates import THINKING, target_with_template

ALWAYS = Speculation(planning="always")
LOCAL = {
    "draft model in the verifier": f"local:draft?model={MODELS / 'draft'}",
    "n-gram": "local:ngram?min=1",
    "suffix": "local:suffix?min=1",
    "lookahead": "local:lookahead",
    "early exit": "local:early_exit?layers=2",
}
PREDICTED = "predicted output"
WAYS = ("alone", "batch", "resumed")
BATCH = 8
"""Requests at once, of any options."""


def main() -> int:
    """Runs the matrix and prints it."""
    options = _parse()
    with tempfile.TemporaryDirectory() as directory, Services() as services:
        cells = asyncio.run(_run(options, Path(directory), services))
    differing = sum(cell.differing for cell in cells)
    figures: dict[str, object] = {
        "requests": sum(cell.requests for cell in cells),
        "differing": differing,
        "cells": [asdict(cell) for cell in cells],
    }
    written = section(cells, machine())
    print_report("matrix", figures, options)
    if options.page is not None:  # last, so that it does not make the checkout one with changes
        document = options.page.read_text(encoding="utf-8")
        options.page.write_text(with_section(document, "matrix", written), encoding="utf-8")
    return 1 if differing else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=3, help="prompts, each with a seed of its own")
    parser.add_argument("--options", help="beginnings of names of options, comma-separated; all by default")
    parser.add_argument("--drafters", help="beginnings of names of drafters, comma-separated; all by default")
    parser.add_argument("--heads", type=Path, help="directory of Medusa heads")
    parser.add_argument("--eagle3", type=Path, help="directory of an EAGLE-3 drafter")
    parser.add_argument("--dflash", type=Path, help="directory of a DFlash drafter")
    parser.add_argument("--page", type=Path, help="document whose section to write")
    add_report_options(parser)
    return parser.parse_args()


def _chosen(names: Sequence[str], beginnings: str | None) -> list[str]:
    wanted = tuple(beginnings.split(",")) if beginnings else ("",)
    return [name for name in names if name.startswith(wanted)]


async def _run(options: argparse.Namespace, directory: Path, services: Services) -> list[Cell]:
    target = target_with_template(directory / "target", THINKING)
    draft = _with_tokenizer(MODELS / "draft", target, directory / "draft")
    drafters = {"draft model": "", **LOCAL, "draft model in the verifier": f"local:draft?model={draft}", PREDICTED: ""}
    for name, given, method in (
        ("Medusa", options.heads, "local:medusa?heads="),
        ("EAGLE-3", options.eagle3, "local:eagle3?model="),
        ("DFlash", options.dflash, "local:dflash?model="),
    ):
        if given is not None:
            drafters[name] = f"{method}{given.resolve()}"
    chosen = _chosen(list(drafters), options.drafters)
    rows = _chosen(list(OPTIONS), options.options)
    async with AsyncExitStack() as held:
        verifier, drafter = await started(
            [lambda: services.forked_verifier(target, "--allow-scoring"), lambda: services.forked_drafter(draft)]
        )
        drafters["draft model"] = drafter
        proxy = await held.enter_async_context(TcpProxy(verifier))
        gateways = [services.gateway([address]) for address in (verifier, proxy.address)]
        direct = Endpoint.at(verifier, await asyncio.to_thread(lambda: gateways[0].url))
        broken = Endpoint.at(proxy.address, await asyncio.to_thread(lambda: gateways[1].url), proxy.cut)
        for endpoint in (direct, broken):
            held.push_async_callback(endpoint.close)
        prompts = [CheckPrompt("held out", text) for text in held_out_prompts(options.prompts)]
        comparison = Comparison(check_requests(prompts, TOKENS, 0, {row: OPTIONS[row] for row in rows}))
        await comparison.run_plain(partial(ask, direct, PLAIN))
        cells: list[Cell] = []
        for name in chosen:
            address = drafters[name]
            if address:
                await direct.client.drafters.attach(address, "it")
            cells += await _compare(name, comparison, direct, broken)
            if address:
                await direct.client.drafters.detach("it")
        return cells


async def _compare(drafter: str, comparison: Comparison, direct: Endpoint, broken: Endpoint) -> list[Cell]:
    """Runs all requests with a drafter in all ways; returns the cells of a row together."""

    async def drafted(where: Endpoint, request: CheckRequest) -> tuple[Output, SpeculationStats]:
        predicted = drafter == PREDICTED
        return await ask(where, _predicting(comparison.plain(request).text) if predicted else ALWAYS, request)

    cells = []
    for way, where, batch in zip(WAYS, (direct, direct, broken), (1, BATCH, 1), strict=True):
        case = await comparison.compare(f"{drafter}, {way}", partial(drafted, where), batch=batch)
        for row, found in case.results.items():
            speed = comparison.plainly.of(row).seconds / found.seconds if way == WAYS[0] else None
            cells.append(Cell.of(drafter, way, found, speed))
            print(cells[-1].line, file=sys.stderr, flush=True)
        for each in case.differences:
            print(f"{each.case}, {each.request['sampling']}: {each.what}: {each.plain} / {each.other}", file=sys.stderr)
    order = list(OPTIONS)
    return sorted(cells, key=lambda cell: order.index(cell.option))


def _predicting(text: str) -> Speculation:
    """Speculation from a prediction that is right but for some letters in the middle."""
    middle = len(text) // 2
    return replace(ALWAYS, prediction=f"{text[:middle]}#?{text[middle + 3 :]}")


def _with_tokenizer(model: Path, target: Path, directory: Path) -> Path:
    """A model with the target's tokenizer files: those of the two are compared."""
    directory.mkdir()
    for path in model.iterdir():
        if path.name.startswith("tokenizer"):
            shutil.copy(target / path.name, directory)
        else:
            (directory / path.name).symlink_to(path)
    return directory


if __name__ == "__main__":
    sys.exit(main())
