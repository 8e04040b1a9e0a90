"""Checks that drafters, swaps, failures and other requests change no token of 100 held-out prompts (law 1).

    python -m benchmarks.laws.invariance [--prompts 100] [--max-tokens 48] [--kernels avx2] [--json]
    python -m benchmarks.laws.invariance --family hybrid --target-millions 400 --draft-millions 25
    python -m benchmarks.laws.invariance --target FILE.gguf --drafts GOOD.gguf BAD.gguf UNTRAINED.gguf
    python -m benchmarks.laws.invariance --eagle DIR --dflash DIR --cases EAGLE,DFlash,kinds

All cases of `draftwire check` with held-out prompts, short and long, under three samplings, and more: each drafter with
16 requests at once, and drafters or verifiers whose processes are killed mid-request. The greedy outputs are also
compared with those of the engine without any service, and with transformers' own generate. The exit status is 1 if a
single output differs.

--eagle and --dflash add cases with EAGLE-3 and DFlash drafters for the target: in a service, in the verifier and
killed, and one in which they, a draft model and prompt lookup are swapped for each other.

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
from draftwire import AsyncClient
from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.kernels.library import use_kernels
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_tools.check.case import Case
from draftwire_tools.check.comparison import Comparison, generate
from draftwire_tools.check.drafters import PLAIN, changing, drafting
from draftwire_tools.check.native import BATCH, compare_ways
from draftwire_tools.check.other_verifiers import compare_variants, variants
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import SAMPLINGS, check_requests
from tests.harness.checkout import MODELS
from tests.harness.kills import KilledDrafters, KilledVerifiers
from tests.harness.services.service_process import ServiceProcess

JOINED = 3
"""Held-out prompts that make a long one: recurrent layers keep states for the prefix cache after 256 tokens."""
DRAFTS = ("good draft", "bad draft", "untrained draft")
HEADS = {"eagle": ("EAGLE-3", "eagle3"), "dflash": ("DFlash", "dflash")}
"""Names of drafters that read the target's hidden states, and of their methods, by option."""
DRAWN = ("greedy", "T=0.8", "T=1.2, top-p")
"""The samplings, of those that `draftwire check` has."""


def check_prompts(texts: Sequence[str]) -> list[CheckPrompt]:
    """Returns the texts as prompts, and long prompts that are made of several of them."""
    joined = ["\n".join(texts[first : first + JOINED]) for first in range(0, len(texts), JOINED)]
    return [*(CheckPrompt("held out", text) for text in texts), *(CheckPrompt("long", text) for text in joined)]


def in_process(options: argparse.Namespace, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, ...]]:
    """Returns the greedy outputs of the engine alone."""
    use_kernels(options.kernels)
    model = PackedModel.load(str(options.target), slots=4096, device=options.device)
    engine = VerificationEngine(model, StepCost([1, 64], [1.0, 2.0]), EngineLimits())
    sampling, eos = SamplingParams(temperature=0.0), frozenset(model.eos_token_ids)
    specs = [
        SequenceSpec(number, prompt, len(prompt) + max_tokens, sampling, eos) for number, prompt in enumerate(prompts)
    ]
    return [tuple(tokens) for tokens in generate_all(engine, specs)]


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


def heads(options: argparse.Namespace) -> list[tuple[str, str, Path]]:
    """Returns name, method and model of each drafter that reads the target's hidden states."""
    given = [(*names, getattr(options, option)) for option, names in HEADS.items()]
    return [(name, method, model) for name, method, model in given if model is not None]


async def compare_all(
    client: AsyncClient,
    comparison: Comparison,
    services: Services,
    options: argparse.Namespace,
    addresses: dict[str, str],
) -> None:
    """Compares all cases. addresses: of the drafter services, by name."""
    target, flags = options.target, ("--kernels", options.kernels)
    info = await client.model_info()
    lengths = {request.prompt.text: len(await client.tokenize(request.prompt.text)) for request in comparison.requests}
    kinds = {name: addresses[name] for name, _, _ in heads(options)}
    kinds |= {f"{name} in the verifier": f"local:{method}?model={model}" for name, method, model in heads(options)}
    found = [await client.drafters.attach(address, name) for name, address in (addresses | kinds).items()]
    await compare_ways(client, comparison, found)
    for each in found:
        run = partial(generate, client, speculation=drafting([each.name]))
        await comparison.compare(f"{each.name}, {BATCH} requests at once", run, batch=BATCH)
    if kinds and comparison.wants("kinds"):
        async with changing(client, [*kinds.values(), addresses[DRAFTS[0]], "local:ngram"]) as pool:
            case = await comparison.compare("kinds swapped for each other", pool.swapping)
            case.events = f"{pool.events} swaps moved a running request"

    def start(model: Path, *more: str) -> ServiceProcess:
        return services.forked_drafter(model, *more)

    mortal = {DRAFTS[0]: partial(start, options.drafts[0])}
    mortal |= {name: partial(start, model, "--target", str(target)) for name, _, model in heads(options)}
    for name, begin in mortal.items():
        for batch in (1, BATCH):
            killed = KilledDrafters(client, begin)
            told = f"{name} killed mid-request, {batch} at once"
            case = await comparison.compare(told, around=killed.around, batch=batch)
            case.events = f"{killed.kills} kills"
    verifiers = KilledVerifiers(partial(services.forked_verifier, target, *flags), addresses[DRAFTS[0]])
    case = await comparison.compare("a verifier killed mid-request", around=verifiers.around, batch=BATCH)
    case.events = f"{case.sum('resumes')} resumed"
    await asyncio.to_thread(verifiers.stop)
    if options.device == "cpu":
        further = variants(info, lengths, options.max_tokens)
        await compare_variants(comparison, target, info, found[:1], further, lengths)


def lines(cases: Sequence[Case]) -> list[dict[str, object]]:
    """Returns the results of the cases as figures."""
    return [
        {
            "case": case.name,
            "batch": case.batch,
            "sampling": each.sampling,
            "differing": each.compared - each.equal,
            "outputs": each.compared,
            "acceptance_length": round(each.tokens / max(1, each.steps), 2),
            "events": case.events or case.not_run,
            "request_seconds": round(each.seconds, 1),
        }
        for case in cases
        for each in case.results.values()
    ]


async def run_cases(options: argparse.Namespace, services: Services, say: Callable[[str], None]) -> dict[str, object]:
    """Runs all cases; returns the figures."""
    target: Path = options.target
    verifier = services.verifier(target, "--kernels", options.kernels)
    drafters = {name: services.drafter(model) for name, model in zip(DRAFTS, options.drafts, strict=True)}
    drafters |= {name: services.drafter(model, "--target", str(target)) for name, _, model in heads(options)}
    addresses = {name: await asyncio.to_thread(lambda s=service: s.address) for name, service in drafters.items()}
    samplings = {name: SAMPLINGS[name] for name in DRAWN}
    prompts = check_prompts(held_out_prompts(options.prompts))
    requests = check_requests(prompts, options.max_tokens, 0, samplings)
    comparison = Comparison(requests, progress=lambda name, _: say(name), wanted=options.cases.split(","))
    async with AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=300.0) as client:
        info = await client.model_info()
        await comparison.run_plain(partial(generate, client, speculation=PLAIN, prefix_cache=False))
        await compare_all(client, comparison, services, options, addresses)
        greedy = [each for each in comparison.requests if each.sampling == "greedy" and each.prompt.kind == "held out"]
        ids = [await client.tokenize(each.prompt.text) for each in greedy]
    for case in comparison.cases:
        say(f"{case.name}: {case.compared - case.equal} of {case.compared} differ {case.events}{case.not_run}")
        for each in case.differences:
            say(f"  {each.request['sampling']}, {each.what} at {each.position}: {each.plain} / {each.other}")
    references = [comparison.plain(each).token_ids for each in greedy]
    few = min(10, len(ids))
    engine_outputs = await asyncio.to_thread(in_process, options, ids[:few], options.max_tokens)
    engine_differing = sum(a != b for a, b in zip(engine_outputs, references[:few], strict=True))
    told = "not compared: its weights would be others"
    if target.suffix != ".gguf":
        theirs = await asyncio.to_thread(transformers_generate, options, ids, options.max_tokens, info.dtype)
        same = sum(a == b for a, b in zip(theirs, references, strict=True))
        told = f"{same} of {len(ids)} greedy references are the same (it adds up in another order)"
    pair = {MODELS / names[0]: f"{family} pair" for family, names in FAMILIES.items()}.get(target, target.name)
    return {
        "models": f"{pair}, {info.dtype}, kernels {info.kernels}, {options.threads} threads each, {info.device}",
        "requests": f"{options.prompts} held-out prompts and {len(prompts) - options.prompts} long ones, up to "
        f"{options.max_tokens} tokens, a seed each",
        "cases": lines(comparison.cases),
        "engine_without_services": f"{engine_differing} of {few} greedy references differ",
        "transformers_generate": told,
        "outputs": sum(case.compared for case in comparison.cases),
        "differing": sum(len(case.differences) for case in comparison.cases) + engine_differing,
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
