"""Measures what hostile drafters cost a verifier: speed, processor time, an honest drafter's requests.

    python -m benchmarks.faults.hostile_drafters [--kinds chameleon,echo] [--runs 5] [--json]

Held-out prompts are decoded greedily, some side by side, in turns: plainly, with an honest drafter, with a hostile one,
and with whichever of the two the verifier chooses. All hostile drafters propose random tokens and report near certainty
for each. In addition:

- wrong: does nothing else;
- chameleon: announces at every second opening that its model was replaced;
- replaced: announces that at every verdict;
- echo: answers each verdict with 63 proposals of a token that was committed long ago, and with nothing else;
- echo-last: answers each verdict with 63 proposals of the token that was committed last;
- foreign: sends 40 proposals for sequences that are not open after each verdict;
- pongs: sends 300 unrequested pongs after each verdict;
- map: announces the largest and slowest feature map that a verifier takes;
- map-silent: does the same, never says that it has caught up, and proposes nothing.

Processor seconds are those of the verifier's process, per token. Gaps are the longest between two tokens of a
request.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig

from benchmarks.faults.hostile_drafter import KINDS, HostileDrafter, HostileMap
from benchmarks.harness.arrangements import run_batch
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, pair_figures
from benchmarks.harness.rates import total, whole_rate
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services, started
from draftwire import AsyncClient, BatchOptions, Drafter, Speculation
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, Request, turned
from tests.harness.checkout import MODELS

PLAIN, HONEST, HOSTILE, BOTH = "plain", "honest", "hostile", "both"
SPECULATION = {
    PLAIN: Speculation(enabled=False),
    HONEST: Speculation(drafter=HONEST),
    HOSTILE: Speculation(drafter=HOSTILE),
    BOTH: Speculation(),
}
"""Speculation options of the requests, by arrangement."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Row:
    """Measurements of one arrangement, run by run."""

    batches: list[list[Batch]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Seconds of the verifier's process per token."""

    @property
    def rates(self) -> list[float]:
        """Tokens per second."""
        return [whole_rate(run) for run in self.batches]

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens."""
        return sum(total(run, "accepted_tokens") for run in self.batches)

    @property
    def tokens(self) -> int:
        """Number of all tokens."""
        return sum(len(stream.token_ids) for run in self.batches for stream in self._streams(run))

    @property
    def longest_gap(self) -> float:
        """Seconds of the longest gap."""
        return max(max(stream.gaps) for run in self.batches for stream in self._streams(run))

    @property
    def outputs(self) -> list[list[tuple[int, ...]]]:
        """Returns all token ids of each run."""
        return [[stream.token_ids for stream in self._streams(run)] for run in self.batches]

    @staticmethod
    def _streams(run: list[Batch]) -> list[Request]:
        return [stream for batch in run for stream in batch.requests]


@dataclass
class Case:
    """Measurements with one kind of drafter."""

    rows: dict[str, Row] = field(default_factory=lambda: {name: Row() for name in SPECULATION})
    nodes: dict[str, int] = field(default_factory=dict)
    """Draft tokens verified when the verifier chose, by drafter."""
    state: str = ""
    """State of the hostile drafter at the end."""


async def run(options: argparse.Namespace, services: Services) -> dict[str, Case]:
    """Runs the comparison."""
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)
    verifier = services.verifier(target, cores=options.verifier_cores)
    (address,) = await started([lambda: verifier])
    (honest,) = await started([lambda: services.drafter(draft, cores=options.drafter_cores)])
    cases: dict[str, Case] = {}
    async with AsyncClient(address, timeout=600.0) as client:
        texts = held_out_prompts(options.prompts)
        prompts = [(await client.tokenize(text))[: options.prompt_tokens] for text in texts]
        batches = [prompts[start : start + options.batch] for start in range(0, len(prompts), options.batch)]
        vocab_size = (await client.model_info()).vocab_size
        shape = AutoConfig.from_pretrained(target)
        maps = [HostileMap(shape.num_hidden_layers, shape.hidden_size, number) for number in range(options.drafters)]
        await client.drafters.attach(honest, HONEST)
        for kind in options.kinds:
            case = cases[kind] = Case()
            async with AsyncExitStack() as running:
                for name, features in zip(_names(options.drafters), maps, strict=True):
                    hostile = await running.enter_async_context(HostileDrafter(kind, vocab_size, features))
                    await client.drafters.attach(hostile.address, name)
                for number in range(options.runs):
                    for name in turned(list(SPECULATION), number):
                        speculation = SPECULATION[name]
                        if name == HOSTILE and options.drafters > 1:
                            speculation = Speculation(drafters=_names(options.drafters))
                        await measure(client, verifier.pid, batches, options.max_tokens, case, name, speculation)
                        if options.verbose:
                            row = case.rows[name]
                            print(
                                f"{kind}, {name}: {row.rates[-1]:.1f} tokens/s, {1e3 * row.processor[-1]:.1f} ms of a "
                                f"processor a token, {case.nodes}",
                                file=sys.stderr,
                                flush=True,
                            )
                case.state = (await drafters(client))[HOSTILE].state
                for name in _names(options.drafters):
                    await client.drafters.detach(name)
    return cases


def _names(count: int) -> list[str]:
    """Returns the names of so many hostile drafters."""
    return [HOSTILE, *(f"{HOSTILE}-{number}" for number in range(2, count + 1))]


async def measure(
    client: AsyncClient,
    pid: int,
    batches: list[list[list[int]]],
    max_tokens: int,
    case: Case,
    name: str,
    speculation: Speculation,
) -> None:
    """Runs an arrangement once."""
    options: BatchOptions = {"max_tokens": max_tokens, "temperature": 0.0, "prefix_cache": False}
    row = case.rows[name]
    nodes = {each.name: each.draft_tokens for each in (await drafters(client)).values()}
    spent, tokens = processor_seconds(pid), row.tokens
    done = [await run_batch(client, prompts, options, speculation) for prompts in batches]
    row.batches.append(done)
    row.processor.append((processor_seconds(pid) - spent) / (row.tokens - tokens))
    if name == BOTH:
        for each in (await drafters(client)).values():
            case.nodes[each.name] = case.nodes.get(each.name, 0) + each.draft_tokens - nodes[each.name]


async def drafters(client: AsyncClient) -> dict[str, Drafter]:
    """Returns the attached drafters, by name."""
    return {each.name: each for each in await client.drafters.list()}


def processor_seconds(pid: int) -> float:
    """Returns the processor time of a process so far, over all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def figures(cases: dict[str, Case], options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"{options.prompts} prompts of {options.prompt_tokens} tokens, {options.batch} side by side, "
        f"{options.max_tokens} tokens more, greedy, each prompt read anew",
    }
    if options.drafters > 1:
        found["hostile drafters"] = f"{options.drafters}, which all draft for each request"
    for kind, case in cases.items():
        plain = case.rows[PLAIN]
        found[f"{kind}: plain, tokens/s"] = Spread.of(plain.rates)
        found[f"{kind}: plain, longest gap s"] = round(plain.longest_gap, 3)
        for name in (HONEST, HOSTILE, BOTH):
            row = case.rows[name]
            found[f"{kind}: {name} / plain, tokens/s"] = Spread.ratio(row.rates, plain.rates)
            found[f"{kind}: {name} / plain, processor time"] = Spread.ratio(row.processor, plain.processor)
            found[f"{kind}: {name}, accepted of {row.tokens}"] = row.accepted
            found[f"{kind}: {name}, longest gap s"] = round(row.longest_gap, 3)
        found[f"{kind}: nodes where the verifier chose"] = dict(sorted(case.nodes.items()))
        found[f"{kind}: state at the end"] = case.state
    return found | {"outputs that differ": differing(cases) or "none", "outputs_identical": not differing(cases)}


def differing(cases: dict[str, Case]) -> list[str]:
    """Returns the arrangements with an output that differs from plain decoding's."""
    return [
        f"{kind}: {name}"
        for kind, case in cases.items()
        for name, row in case.rows.items()
        if any(outputs != case.rows[PLAIN].outputs[0] for outputs in row.outputs)
    ]


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=list(KINDS),
        help="kinds of hostile drafters, comma-separated",
    )
    parser.add_argument("--batch", type=int, default=4, help="number of concurrent requests")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--drafters", type=int, default=1, help="number of hostile drafters")
    add_pair_options(parser)
    add_run_options(parser, prompts=8, max_tokens=96)
    options = parser.parse_args()
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error(f"--kinds: there is no {kind}, only {', '.join(KINDS)}")
    with Services() as services:
        cases = asyncio.run(run(options, services))
    print_report("hostile_drafters", figures(cases, options), options)
    sys.exit(bool(differing(cases)))


if __name__ == "__main__":
    main()
