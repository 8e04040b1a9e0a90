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
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.sections import with_section
from benchmarks.harness.services import Services, started
from benchmarks.harness.tcp_proxy import TcpProxy
from benchmarks.laws.matrix.cell import Cell
from benchmarks.laws.matrix.endpoints import Endpoint, Outcome
from benchmarks.laws.matrix.page import section
from benchmarks.laws.matrix.request_options import OPTIONS
from draftwire import Speculation
from tests.harness.checkout import MODELS
from tests.harness.models.chat_templates import THINKING, target_with_template

PLAIN = Speculation(enabled=False)
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


def main() -> int:
    """Runs the matrix and prints it."""
    options = _parse()
    with tempfile.TemporaryDirectory() as directory, Services() as services:
        cells = asyncio.run(_run(options, Path(directory), services))
    differing = sum(cell.differing for cell in cells)
    figures: dict[str, object] = {
        "requests": sum(cell.requests for cell in cells),
        "differing": differing,
        "cells": [cell.as_dict() for cell in cells],
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
        prompts = held_out_prompts(options.prompts)
        plain = {row: await _measured(direct, row, prompts, [PLAIN] * len(prompts)) for row in rows}
        cells: list[Cell] = []
        for name in chosen:
            address = drafters[name]
            if address:
                await direct.client.drafters.attach(address, "it")
            for row in rows:
                cells += await _compare(row, name, prompts, plain[row], direct, broken)
                print(cells[-3].line, file=sys.stderr, flush=True)
            if address:
                await direct.client.drafters.detach("it")
        return cells


async def _measured(
    where: Endpoint, row: str, prompts: Sequence[str], speculations: Sequence[Speculation]
) -> tuple[list[Outcome], float]:
    """Runs a row's requests one after another; returns what came of them and the seconds."""
    began = time.perf_counter()
    asked = enumerate(zip(prompts, speculations, strict=True))
    found = [await OPTIONS[row](where, prompt, seed, speculation) for seed, (prompt, speculation) in asked]
    return found, time.perf_counter() - began


async def _compare(
    row: str,
    drafter: str,
    prompts: Sequence[str],
    plain: tuple[list[Outcome], float],
    direct: Endpoint,
    broken: Endpoint,
) -> list[Cell]:
    """Runs a row's requests in all ways."""
    expected, seconds = plain
    drafting = [_predicting(each.text) if drafter == PREDICTED else ALWAYS for each in expected]
    alone, taken = await _measured(direct, row, prompts, drafting)
    batch = await asyncio.gather(
        *(OPTIONS[row](direct, prompt, seed, drafting[seed]) for seed, prompt in enumerate(prompts))
    )
    cut, _ = await _measured(broken, row, prompts, drafting)
    found: Mapping[str, Sequence[Outcome]] = dict(zip(WAYS, (alone, batch, cut), strict=True))
    return [
        Cell.of(row, drafter, way, expected, outcomes, seconds / taken if way == "alone" else None)
        for way, outcomes in found.items()
    ]


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
