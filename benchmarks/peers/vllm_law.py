"""Checks that drafters, swaps, failures and other requests change no token of a verifier on vLLM (law 1).

    python -m benchmarks.peers.vllm_law [--prompts 13] [--max-tokens 24] [--dtype float32] [--json]
    python -m benchmarks.peers.vllm_law --target DIR --drafts GOOD BAD

The cases of `draftwire check` with held-out prompts, at temperatures 0, 0.8 and 1, and drafters that are killed
mid-request. vLLM for CPUs has an environment of its own, made at the first run. The exit status is 1 if a single output
differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import prepare, vllm_environment
from draftwire import AsyncClient
from draftwire_tools.check.comparison import Comparison, generate
from draftwire_tools.check.drafters import PLAIN
from draftwire_tools.check.native import BATCH, compare_ways
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import check_requests
from tests.harness.checkout import MODELS
from tests.harness.kills import KilledDrafters
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.vllm_verifier import VllmVerifier

DRAWN = {f"T={temperature:g}": {"temperature": temperature} for temperature in (0.0, 0.8, 1.0)}
"""The samplings."""
_REQUEST_SECONDS = 86400.0  # the time that it takes shows nothing


async def run_cases(
    options: argparse.Namespace, services: Services, verifier: ServiceProcess, say: Callable[[str], None]
) -> tuple[dict[str, object], int]:
    """Runs all cases; returns the figures, and how many outputs differ."""
    drafters = {path.name: services.drafter(path, "--dtype", options.dtype) for path in options.drafts}
    prompts = [CheckPrompt("held out", text) for text in held_out_prompts(options.prompts)]
    requests = check_requests(prompts, options.max_tokens, 0, DRAWN)
    comparison = Comparison(requests, progress=lambda name, _: say(name), bits=False)
    address = await asyncio.to_thread(lambda: verifier.address)
    async with AsyncClient(address, timeout=_REQUEST_SECONDS) as client:
        info = await client.model_info()
        await comparison.run_plain(partial(generate, client, speculation=PLAIN, prefix_cache=False))
        found = [
            await client.drafters.attach(await asyncio.to_thread(lambda s=service: s.address), name)
            for name, service in drafters.items()
        ]
        await compare_ways(client, comparison, found)
        for batch in (1, BATCH):
            start = partial(services.forked_drafter, options.drafts[0], "--dtype", options.dtype)
            killed = KilledDrafters(client, start)
            case = await comparison.compare(f"killed mid-request, {batch} at once", around=killed.around, batch=batch)
            case.events = f"{killed.kills} kills"
    for case in comparison.cases:
        say(f"{case.name}: {case.compared - case.equal} of {case.compared} differ {case.events}{case.not_run}")
        for each in case.differences:
            say(f"  {each.request['sampling']}, {each.what} at {each.position}: {each.plain} / {each.other}")
    differing = sum(len(case.differences) for case in comparison.cases)
    at = "" if options.dtype == "float32" else f" at {options.dtype}"  # whose rows vLLM does not compute alike
    figures: dict[str, object] = {
        "models": f"{options.target.name}, {info.numerics_description}",
        "versions": ", ".join(f"{name} {each}" for name, each in vllm_environment().versions.items()),
        "requests": f"{options.prompts} held-out prompts, up to {options.max_tokens} tokens, a seed each",
        "cases": [case.to_json() for case in comparison.cases],
        f"outputs{at}": sum(case.compared for case in comparison.cases),
        f"differing{at}": differing,
        "draft tokens verified": sum(case.draft_tokens for case in comparison.cases),
        "draft tokens accepted": sum(case.accepted_tokens for case in comparison.cases),
    }
    return figures, differing


def main() -> int:
    """Runs the cases and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=13)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of all models")
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    parser.add_argument(
        "--drafts", type=Path, nargs="+", default=[MODELS / "draft", MODELS / "draft-early"], metavar="DIR"
    )
    add_report_options(parser)
    options = parser.parse_args()
    prepare()
    started = time.perf_counter()
    say = (lambda line: print(line, file=sys.stderr)) if options.json else (lambda line: print(line, flush=True))
    flags = ("--model", str(options.target), "--max-sequences", str(2 * BATCH))
    with Services() as services:
        verifier = VllmVerifier(flags, services.logs, dtype=options.dtype)
        try:
            figures, differing = asyncio.run(run_cases(options, services, verifier, say))
        finally:
            verifier.kill()
    figures["seconds"] = round(time.perf_counter() - started)
    print_report("vllm_law", figures, options, printed=("cases",))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
