"""Checks that drafters, swaps, failures and other requests change no token of 100 held-out prompts (law 1).

    python -m benchmarks.laws.invariance [--prompts 100] [--max-tokens 48] [--kernels avx2] [--json]
    python -m benchmarks.laws.invariance --family hybrid --target-millions 400 --draft-millions 25
    python -m benchmarks.laws.invariance --target FILE.gguf --drafts GOOD.gguf BAD.gguf UNTRAINED.gguf
    python -m benchmarks.laws.invariance --eagle DIR --dflash DIR --planning always --cases EAGLE,DFlash,kinds

Real services generate from held-out prompts, under three samplings, with and without drafters, alone and in a batch of
16, with drafters that are swapped after every 5 tokens, and with drafters or verifiers whose processes are killed
meanwhile; with so few KV slots that sequences are preempted; and, from long prompts, with and without the prefix cache.
The reference is the verifier's output alone, without drafters and without the cache. It is compared in turn with the
engine without any service, and with transformers' own generate. The exit status is 1 if a single output differs.

--eagle and --dflash add cases with EAGLE-3 and DFlash drafters for the target: in a service, in the verifier and
killed, and one in which they, a draft model and prompt lookup are swapped for each other. --planning always has all
that is drafted verified, also where it does not pay, as on a small target.

--device cuda runs all models on one GPU.
--family chooses the bundled models, inflated if sizes are given. --kernels selects the verifier's kernels. --target and
--drafts are other models with one tokenizer. Transformers would compute with other weights than those of a GGUF file,
and is then left out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import FAMILIES, add_family_option
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.laws.case_requests import SAMPLINGS, Output, Requests, Runner
from benchmarks.laws.drafter_runners import SWAP_TOKENS, Drafting, Killing, Swapping
from benchmarks.laws.verifier_runners import FailingOver, FromCache, Preempting
from draftwire import AsyncClient, Generation, Planning
from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.kernels.library import use_kernels
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.checkout import MODELS
from verifier_service.settings import LEAST_SLOTS

BATCH = 16
JOINED = 3
"""Held-out prompts that make a long one: recurrent layers keep states for the prefix cache after 256 tokens."""
TOGETHER = 6
"""Prompts that fit into few KV slots at once."""
OUTPUT = 160
"""Tokens of long outputs: a sequence is admitted with room for a tree, and outgrows it."""
DRAFTS = ("good draft", "bad draft", "untrained draft")
HEADS = {"eagle": ("EAGLE-3", "eagle3"), "dflash": ("DFlash", "dflash")}
"""Names of drafters that read the target's hidden states, and of their methods, by option."""


@dataclass(frozen=True)
class Case:
    """Requests that are run in one way, under all samplings."""

    name: str
    runner: Runner
    batches: tuple[int, ...] = (1, BATCH)
    long: bool = False
    """Whether they have long prompts."""
    tokens: int | None = None
    """Tokens of each output; by default as the options say."""
    cached: bool = True
    """Whether they may use the prefix cache."""


def in_process(options: argparse.Namespace, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, ...]]:
    """Returns the greedy outputs of the engine alone, one sequence after another."""
    use_kernels(options.kernels)
    model = PackedModel.load(str(options.target), slots=4096, device=options.device)
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
    options: argparse.Namespace, prompts: Sequence[Sequence[int]], max_tokens: int, dtype: str
) -> list[tuple[int, ...]]:
    """Returns the greedy outputs of transformers' own generate."""
    model = AutoModelForCausalLM.from_pretrained(options.target, dtype=getattr(torch, dtype)).eval().to(options.device)
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], device=options.device)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        outputs.append(tuple(out[0, len(prompt) :].tolist()))
    return outputs


def long_prompts(prompts: Sequence[str]) -> list[str]:
    """Returns prompts that are made of several."""
    return ["\n".join(prompts[first : first + JOINED]) for first in range(0, len(prompts), JOINED)]


def heads(options: argparse.Namespace) -> list[tuple[str, str, Path]]:
    """Returns name, method and model of each drafter that reads the target's hidden states."""
    given = [(*names, getattr(options, option)) for option, names in HEADS.items()]
    return [(name, method, model) for name, method, model in given if model is not None]


def cases(
    client: AsyncClient, tight: AsyncClient, services: Services, options: argparse.Namespace, addresses: dict[str, str]
) -> list[Case]:
    """Returns all cases; of short and of long prompts, the reference comes first.

    client and tight: of the verifier and of one with few KV slots. addresses: of the drafters.
    """
    good = addresses["good draft"]
    kinds: dict[str, str] = {}
    alone: list[Case] = []
    for name, method, model in heads(options):
        inside = f"local:{method}?model={model}"
        kinds |= {name: addresses[name], f"{name} in the verifier": inside}
        alone += [
            Case(f"{name} in the verifier", Drafting(client, inside)),
            Case(f"{name} killed mid-request", Killing(client, services, model, "--target", str(options.target))),
        ]
    if kinds:
        kinds |= {"draft model": good, "n-gram": "local:ngram"}
        alone.append(Case("kinds swapped for each other", Swapping(client, kinds)))
    start = partial(services.forked_verifier, options.target, "--kernels", options.kernels)
    return [
        Case("no drafter", Drafting(client, None)),
        *(Case(name, Drafting(client, address)) for name, address in addresses.items()),
        Case(
            f"a swap after every {SWAP_TOKENS} tokens", Swapping(client, {"good": good, "bad": addresses["bad draft"]})
        ),
        Case("a drafter killed mid-request", Killing(client, services, options.drafts[0])),
        *alone,
        Case("long outputs, no drafter", Drafting(client, None), (1,), tokens=OUTPUT),
        Case("long outputs, few KV slots", Preempting(tight, good), (BATCH,), tokens=OUTPUT),
        Case("a verifier killed mid-request", FailingOver(start, good), (BATCH,)),
        Case("long prompts, no drafter", Drafting(client, None), (1,), long=True, cached=False),
        Case("long prompts, cached", FromCache(client, good), long=True),
    ]


async def run_cases(options: argparse.Namespace, services: Services, say: Callable[[str], None]) -> dict[str, object]:
    """Runs all cases; returns the figures."""
    prompts = held_out_prompts(options.prompts)
    target: Path = options.target
    verifier = services.verifier(target, "--kernels", options.kernels)
    drafters = {name: services.drafter(model) for name, model in zip(DRAFTS, options.drafts, strict=True)}
    drafters |= {name: services.drafter(model, "--target", str(target)) for name, _, model in heads(options)}
    addresses = {name: await asyncio.to_thread(lambda s=service: s.address) for name, service in drafters.items()}
    differing_outputs = outputs_compared = 0
    lines: list[dict[str, object]] = []
    references: dict[tuple[bool, int | None, str], list[Output]] = {}
    greedy: list[Generation] = []
    async with AsyncExitStack() as clients:
        client = await clients.enter_async_context(
            AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=300.0)
        )
        lengths = [len(await client.tokenize(text)) for text in prompts[:TOGETHER]]
        slots = max(LEAST_SLOTS, sum(lengths))
        short_of_slots = services.verifier(target, "--kernels", options.kernels, "--kv-slots", str(slots))
        tight = await clients.enter_async_context(
            AsyncClient(await asyncio.to_thread(lambda: short_of_slots.address), timeout=300.0)
        )
        info = await client.model_info()
        wanted = tuple(options.cases.split(","))
        for case in cases(client, tight, services, options, addresses):
            if not case.name.startswith(wanted) and (case.long, case.tokens, "greedy") in references:
                continue
            texts = long_prompts(prompts) if case.long else prompts
            for batch in case.batches:
                for sampling in SAMPLINGS:
                    tokens = case.tokens or options.max_tokens
                    requests = Requests(client, texts, sampling, tokens, batch, case.cached, options.planning)
                    started = time.perf_counter()
                    await case.runner(requests)
                    seconds = time.perf_counter() - started
                    outputs = requests.outputs()
                    if sampling == "greedy" and not greedy:
                        greedy = [requests.generations[index] for index in range(len(prompts))]
                    reference = references.setdefault((case.long, case.tokens, sampling), outputs)
                    differing = sum(a != b for a, b in zip(outputs, reference, strict=True))
                    differing_outputs += differing
                    outputs_compared += len(outputs)
                    tokens = sum(len(output.token_ids) for output in outputs)
                    steps = sum(g.speculation.steps for g in requests.generations.values())
                    line = {
                        "case": case.name,
                        "batch": batch,
                        "sampling": sampling,
                        "differing": differing,
                        "outputs": len(outputs),
                        "acceptance_length": round(tokens / steps, 2),
                        "events": requests.events,
                        "seconds": round(seconds, 1),
                    }
                    lines.append(line)
                    say(
                        f"{case.name:29} {'alone' if batch == 1 else f'batch of {batch}':12} {sampling:17} "
                        f"{differing:3} of {len(outputs)} differ, {line['acceptance_length']:.2f} tokens a step"
                        + (f", {requests.events} {case.runner.events}" if case.runner.events else "")
                        + f" ({seconds:.0f} s)"
                    )
    ids = [generation.prompt_token_ids for generation in greedy]
    tokens_of = [tuple(generation.token_ids) for generation in greedy]
    few = min(10, len(ids))
    engine_outputs = await asyncio.to_thread(in_process, options, ids[:few], options.max_tokens)
    engine_differing = sum(a != b for a, b in zip(engine_outputs, tokens_of[:few], strict=True))
    compared = "not compared: its weights would be others"
    if target.suffix != ".gguf":
        theirs = await asyncio.to_thread(transformers_generate, options, ids, options.max_tokens, info.dtype)
        same = sum(a == b for a, b in zip(theirs, tokens_of, strict=True))
        compared = f"{same} of {len(ids)} greedy references are the same (it adds up in another order)"
    pair = {MODELS / names[0]: f"{family} pair" for family, names in FAMILIES.items()}.get(target, target.name)
    return {
        "models": f"{pair}, {info.dtype}, kernels {info.kernels}, {options.threads} threads each, {info.device}",
        "requests": f"{len(prompts)} held-out prompts, up to {options.max_tokens} tokens, a seed each"
        + (f", planning {options.planning}" if options.planning != "auto" else ""),
        "cases": lines,
        "engine_without_services": f"{engine_differing} of {few} greedy references differ",
        "transformers_generate": compared,
        "outputs": outputs_compared,
        "differing": differing_outputs + engine_differing,
    }


def _sized(model: Path, millions: float | None) -> Path:
    return model if millions is None else inflated(model, millions)


def main() -> int:
    """Runs the cases and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--cases", default="", help="beginnings of names, such as 'good,long'; all by default")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each service")
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto")
    parser.add_argument("--device", default="cpu", help="of all models: cpu, cuda or cuda:N")
    add_family_option(parser)
    parser.add_argument("--target-millions", type=float, help="parameters of an inflated target; as bundled by default")
    parser.add_argument("--draft-millions", type=float, help="likewise of inflated draft models")
    parser.add_argument("--target", type=Path, help="that of the family by default")
    parser.add_argument("--drafts", type=Path, nargs=3, metavar=("GOOD", "BAD", "UNTRAINED"))
    for option, (head, _) in HEADS.items():
        parser.add_argument(f"--{option}", type=Path, help=f"directory of a drafter for the target: {head}")
    parser.add_argument("--planning", choices=get_args(Planning), default="auto", help="of all requests")
    add_report_options(parser)
    options = parser.parse_args()
    name, good = FAMILIES[options.family]
    options.target = options.target or _sized(MODELS / name, options.target_millions)
    options.drafts = options.drafts or [
        _sized(MODELS / each, options.draft_millions) for each in (good, "draft-early", "draft-untrained")
    ]
    started = time.perf_counter()
    flags = ["--device", options.device]
    with Services(threads=options.threads, flags=flags) as services:
        say = (lambda line: print(line, file=sys.stderr)) if options.json else (lambda line: print(line, flush=True))
        figures = asyncio.run(run_cases(options, services, say))
    figures["seconds"] = round(time.perf_counter() - started)
    print_report("invariance", figures, options, printed=("cases",))
    return 1 if figures["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
