"""Checks that drafters, swaps, killed drafters and batches change no token of 100 held-out prompts (law 1).

    python -m benchmarks.laws.invariance [--prompts 100] [--max-tokens 48] [--kernels avx2] [--json]
    python -m benchmarks.laws.invariance --target FILE.gguf --drafts GOOD.gguf BAD.gguf UNTRAINED.gguf

Real services of the bundled models generate from held-out prompts, under three samplings, with and without drafters,
alone and in a batch of 16, with drafters that are swapped after every 5 tokens, and with drafters whose processes are
killed meanwhile. The reference is the verifier's output alone and without drafters. It is compared in turn with the
engine without any service, and with transformers' own generate. The exit status is 1 if a single output differs.

--kernels selects the verifier's kernels. --target and --drafts are other models with one tokenizer. Transformers would
compute with other weights than those of a GGUF file, and is then left out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from draftwire import AsyncClient, BatchOptions, DrafterNotFoundError, Generation
from speculative_engine.engine.engine_limits import EngineLimits
from speculative_engine.engine.sequence import SequenceSpec
from speculative_engine.engine.verification_engine import VerificationEngine
from speculative_engine.kernels.kernel_names import Kernels
from speculative_engine.kernels.library import use_kernels
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.sampling.sampling_params import SamplingParams
from tests.harness.checkout import MODELS
from tests.harness.service_process import ServiceProcess

SAMPLINGS: dict[str, BatchOptions] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=1.2 top-p 0.95": {"temperature": 1.2, "top_p": 0.95},
}
BATCH = 16
SWAP_TOKENS = 5
DRAFTS = ("good draft", "bad draft", "untrained draft")
BUNDLED_DRAFTS = [MODELS / name for name in ("draft", "draft-early", "draft-untrained")]

Runner = Callable[["Requests"], Awaitable[None]]


@dataclass(frozen=True)
class Output:
    """The values that must not differ."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


@dataclass
class Requests:
    """The requests of one case, all under the same sampling. Request i has prompt i and seed i."""

    client: AsyncClient
    prompts: Sequence[str]
    sampling: str
    max_tokens: int
    batch: int
    """Requests under way at a time."""
    generations: dict[int, Generation] = field(default_factory=dict)
    events: int = 0
    """Swaps or kills that happened while requests ran."""

    async def run(self, index: int, on_tokens: Callable[[int], object] = lambda count: None) -> None:
        """Runs a request; calls `on_tokens` with the number of tokens in each chunk."""
        options = SAMPLINGS[self.sampling]
        async with self.client.stream(self.prompts[index], seed=index, max_tokens=self.max_tokens, **options) as stream:
            async for chunk in stream:
                on_tokens(len(chunk.token_ids))
        self.generations[index] = stream.result

    async def run_all(self) -> None:
        """Runs all requests, `batch` at a time; the next one starts as soon as one ends."""
        remaining = iter(range(len(self.prompts)))

        async def worker() -> None:
            for index in remaining:
                await self.run(index)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.batch):
                tasks.create_task(worker())

    async def run_groups(self, group: Callable[[range], Coroutine[Any, Any, None]]) -> None:
        """Runs the requests in groups of `batch`, one group after another."""
        for first in range(0, len(self.prompts), self.batch):
            await group(range(first, min(first + self.batch, len(self.prompts))))

    def outputs(self) -> list[Output]:
        """Returns the outputs in the order of the prompts."""
        ordered = [self.generations[index] for index in range(len(self.prompts))]
        return [Output(tuple(g.token_ids), g.text, g.finish_reason) for g in ordered]


class Swapping:
    """Two drafters that alternate: after every 5 tokens of a request one takes over from the other."""

    def __init__(self, client: AsyncClient, drafters: dict[str, str]):
        """drafters: addresses by name."""
        self._client = client
        self._drafters = drafters

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case. The drafters are attached before it and detached after it."""
        for name, address in self._drafters.items():
            await self._client.drafters.attach(address, name)
        await requests.run_groups(lambda indices: self._run_group(requests, indices))
        await detach_all(self._client)

    async def _run_group(self, requests: Requests, indices: range) -> None:
        changed = asyncio.Event()
        counts = dict.fromkeys(indices, 0)

        def counter(index: int) -> Callable[[int], object]:
            def count(tokens: int) -> None:
                counts[index] += tokens
                changed.set()

            return count

        async def run_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for index in indices:
                    tasks.create_task(requests.run(index, counter(index)))

        running = asyncio.create_task(run_all())
        running.add_done_callback(lambda _: changed.set())
        due = SWAP_TOKENS
        while not running.done():
            await changed.wait()
            changed.clear()
            if max(counts.values()) >= due and not running.done():
                due = max(counts.values()) + SWAP_TOKENS
                requests.events += await self._swap()
        await running

    async def _swap(self) -> bool:
        """Swaps the drafters; returns whether a running request moved."""
        listed = await self._client.drafters.list()
        old = next((d for d in listed if d.sequences), listed[0]).name
        new = next(name for name in self._drafters if name != old)
        swap = await self._client.drafters.swap(old, new)
        await self._client.drafters.attach(self._drafters[old], old)
        return swap.moved_sequences > 0


class Killing:
    """A drafter that is killed in the middle of a request, or of 16, and restarted for the next."""

    def __init__(self, client: AsyncClient, services: Services, draft: Path):
        """draft: the model of the drafters."""
        self._client = client
        self._services = services
        self._draft = draft
        self._spares: list[ServiceProcess] = []
        self._count = 0

    def prepare(self) -> None:
        """Starts some drafters ahead, so that the next request does not have to wait for one."""
        while len(self._spares) < 3:
            self._spares.append(self._services.forked_drafter(self._draft))

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        await requests.run_groups(lambda indices: self._run_group(requests, indices))

    async def _run_group(self, requests: Requests, indices: range) -> None:
        self.prepare()
        drafter = self._spares.pop(0)
        address = await asyncio.to_thread(lambda: drafter.address)
        self._count += 1
        name = f"mortal-{self._count}"
        await self._client.drafters.attach(address, name)
        left = requests.max_tokens * len(indices) // 2
        killed = False

        def count(tokens: int) -> None:
            nonlocal left, killed
            left -= tokens
            if left <= 0 and not killed:
                killed = True
                drafter.kill()
                requests.events += 1

        async with asyncio.TaskGroup() as tasks:
            for index in indices:
                tasks.create_task(requests.run(index, count))
        if not killed:  # the requests ended early, at their end-of-text tokens
            drafter.kill()
        await self._client.drafters.detach(name)


class Drafting:
    """One drafter throughout, or none."""

    def __init__(self, client: AsyncClient, address: str | None):
        self._client = client
        self._address = address

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        if self._address is not None:
            await self._client.drafters.attach(self._address)
        await requests.run_all()
        await detach_all(self._client)


async def detach_all(client: AsyncClient) -> None:
    """Detaches all drafters of the verifier."""
    for drafter in await client.drafters.list():
        try:
            await client.drafters.detach(drafter.name)
        except DrafterNotFoundError:
            continue


def in_process(
    target: Path, kernels: Kernels, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[tuple[int, ...]]:
    """Returns the greedy outputs of the engine alone, one sequence after another."""
    use_kernels(kernels)
    model = PackedModel.load(str(target), slots=4096)
    engine = VerificationEngine(model, StepCost([1, 64], [1.0, 2.0]), EngineLimits())
    outputs = []
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, seed=number)
        eos = frozenset(model.eos_token_ids)
        engine.add(SequenceSpec(number, prompt, len(prompt) + max_tokens, sampling, eos))
        tokens: list[int] = []
        while engine.running:
            for outcome in engine.step().outcomes:
                tokens += outcome.tokens
        outputs.append(tuple(tokens))
    return outputs


@torch.inference_mode()
def transformers_generate(
    target: Path, prompts: Sequence[Sequence[int]], max_tokens: int, dtype: str
) -> list[tuple[int, ...]]:
    """Returns the greedy outputs of transformers' own generate."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype)).eval()
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        outputs.append(tuple(out[0, len(prompt) :].tolist()))
    return outputs


async def run_cases(options: argparse.Namespace, services: Services, say: Callable[[str], None]) -> dict[str, object]:
    """Runs all cases; returns the figures."""
    prompts = held_out_prompts(options.prompts)
    target: Path = options.target
    verifier = services.verifier(target, "--kernels", options.kernels)
    drafters = {name: services.drafter(model) for name, model in zip(DRAFTS, options.drafts, strict=True)}
    addresses = {name: await asyncio.to_thread(lambda s=service: s.address) for name, service in drafters.items()}
    differing_outputs = outputs_compared = 0
    lines: list[dict[str, object]] = []
    async with AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=120.0) as client:
        info = await client.model_info()
        killing = Killing(client, services, options.drafts[0])
        runners: dict[str, Runner] = {
            "no drafter": Drafting(client, None),
            **{name: Drafting(client, address) for name, address in addresses.items()},
            f"a swap after every {SWAP_TOKENS} tokens": Swapping(
                client, {"good": addresses["good draft"], "bad": addresses["bad draft"]}
            ),
            "a drafter killed mid-request": killing,
        }
        references: dict[str, list[Output]] = {}
        greedy: list[Generation] = []
        for name, runner in runners.items():
            for batch in (1, BATCH):
                for sampling in SAMPLINGS:
                    requests = Requests(client, prompts, sampling, options.max_tokens, batch)
                    started = time.perf_counter()
                    await runner(requests)
                    seconds = time.perf_counter() - started
                    outputs = requests.outputs()
                    if sampling == "greedy" and not greedy:
                        greedy = [requests.generations[index] for index in range(len(prompts))]
                    reference = references.setdefault(sampling, outputs)
                    differing = sum(a != b for a, b in zip(outputs, reference, strict=True))
                    differing_outputs += differing
                    outputs_compared += len(outputs)
                    tokens = sum(len(output.token_ids) for output in outputs)
                    steps = sum(g.speculation.steps for g in requests.generations.values())
                    line = {
                        "case": name,
                        "batch": batch,
                        "sampling": sampling,
                        "differing": differing,
                        "outputs": len(outputs),
                        "acceptance_length": round(tokens / steps, 2),
                        "events": requests.events,
                        "seconds": round(seconds, 1),
                    }
                    lines.append(line)
                    what = "swaps" if isinstance(runner, Swapping) else "kills"
                    say(
                        f"{name:28} {'alone' if batch == 1 else f'batch of {batch}':12} {sampling:17} "
                        f"{differing:3} of {len(outputs)} differ, {line['acceptance_length']:.2f} tokens a step"
                        + (f", {requests.events} {what}" if requests.events else "")
                        + f" ({seconds:.0f} s)"
                    )
    ids = [generation.prompt_token_ids for generation in greedy]
    tokens_of = [tuple(generation.token_ids) for generation in greedy]
    few = min(10, len(ids))
    engine_outputs = await asyncio.to_thread(in_process, target, options.kernels, ids[:few], options.max_tokens)
    engine_differing = sum(a != b for a, b in zip(engine_outputs, tokens_of[:few], strict=True))
    compared = "not compared: its weights would be others"
    if target.suffix != ".gguf":
        theirs = await asyncio.to_thread(transformers_generate, target, ids, options.max_tokens, info.dtype)
        same = sum(a == b for a, b in zip(theirs, tokens_of, strict=True))
        compared = f"{same} of {len(ids)} greedy references are the same (it adds up in another order)"
    pair = "bundled pair" if target == MODELS / "target" else target.name
    return {
        "models": f"{pair}, {info.dtype}, kernels {info.kernels}, {options.threads} threads each",
        "requests": f"{len(prompts)} held-out prompts, up to {options.max_tokens} tokens, a seed each",
        "cases": lines,
        "engine_without_services": f"{engine_differing} of {few} greedy references differ",
        "transformers_generate": compared,
        "outputs": outputs_compared,
        "differing": differing_outputs + engine_differing,
    }


def main() -> int:
    """Runs the cases and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each service")
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto")
    parser.add_argument("--target", type=Path, default=MODELS / "target", help="the bundled one by default")
    parser.add_argument("--drafts", type=Path, nargs=3, default=BUNDLED_DRAFTS, metavar=("GOOD", "BAD", "UNTRAINED"))
    add_report_options(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    with Services(threads=options.threads) as services:
        say = (lambda line: print(line, file=sys.stderr)) if options.json else (lambda line: print(line, flush=True))
        figures = asyncio.run(run_cases(options, services, say))
    figures["seconds"] = round(time.perf_counter() - started)
    print_report("invariance", figures, options, printed=("cases",))
    return 1 if figures["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
