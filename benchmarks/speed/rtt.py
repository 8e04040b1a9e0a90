"""Measures round trips of 0 to 50 ms by policy: draft then verify, a chain drafted ahead, a tree.

    python -m benchmarks.speed.rtt [--round-trips 0,1,5,20,50] [--depths 3,5,8] [--runs 5] [--cases FILE] [--json]

A proxy between the services delays every byte by half the round trip. Held-out prompts are decoded greedily, one at a
time; the policies, and plain decoding, take turns from prompt to prompt.

- plain: no drafter.
- draft then verify: the drafter drafts a chain of K tokens and stops; the verifier waits for all of them, verifies them
  and sends the verdict; then come the next K. Only this policy has another planner (stand_ins/patient_verifier.py),
  since the verifier's own never waits longer than tokens are worth. Each K is measured; at each round trip the best
  counts.
- chain ahead: the drafter as it is, with one child per node: it never stops.
- tree ahead: the services as they are.

The share of hits is the share of verdicts whose last token had been drafted already, so that the subtree below it
survived and no round trip was waited for. It is measured at temperatures 0, 0.8 and 1, without a delay.

--cases writes the measurements for `pipeline_sim.py --validate`, which simulates them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness.arrangements import Arrangement, Comparison, Measured, measure, measure_and_report
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, counts, pair_figures
from benchmarks.harness.services import VERIFIER, Services, started
from benchmarks.harness.simulated_models import Place
from benchmarks.harness.simulation_case import drafted_places, simulation_case
from benchmarks.harness.tcp_proxy import TcpProxy
from draftwire import AsyncClient, Speculation
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

SHAPED = "benchmarks.harness.stand_ins.shaped_drafter"
PATIENT = "benchmarks.harness.stand_ins.patient_verifier"
TREE, CHAIN = "tree ahead", "chain ahead"
PLAIN_NAME = "plain"
TEMPERATURES = (0.8, 1.0)
_SLOTS = ("--kv-slots", "4096")


class Delays:
    """Attaches drafters to verifiers over links of every delay. A drafter has a separate name for each round trip, so
    the verifier learns the times of each link separately."""

    def __init__(self, round_trips: Sequence[float], stack: AsyncExitStack):
        self._round_trips = round_trips
        self._stack = stack

    async def attach(self, client: AsyncClient, policy: str, address: str) -> None:
        """Attaches a drafter once for each round trip."""
        for milliseconds in self._round_trips:
            proxy = await self._stack.enter_async_context(TcpProxy(address))
            proxy.set_delay(milliseconds / 2e3)
            await client.drafters.attach(proxy.address, at(policy, milliseconds))


def at(policy: str, milliseconds: float) -> str:
    """Returns the name of a policy at a round trip."""
    return f"{policy}, {milliseconds:g} ms"


def in_turn(depth: int) -> str:
    """Returns the name of draft-then-verify with this many tokens."""
    return f"draft then verify, K = {depth}"


async def run(options: argparse.Namespace, services: Services) -> Measured:
    """Runs all policies at all round trips."""
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)

    def verifier(module: str) -> ServiceProcess:
        return services.verifier(target, *_SLOTS, cores=options.verifier_cores, module=module)

    def chain(*depth: object) -> ServiceProcess:
        flags = ("--width", "1", *map(str, depth), *_SLOTS)
        return services.drafter(draft, *flags, cores=options.drafter_cores, module=SHAPED)

    shapes = [lambda: services.drafter(draft, *_SLOTS, cores=options.drafter_cores), chain]
    shapes += [partial(chain, "--depth", depth) for depth in options.depths]
    verifiers, drafters = await asyncio.gather(
        started([partial(verifier, VERIFIER), partial(verifier, PATIENT)]), started(shapes)
    )
    async with AsyncExitStack() as stack:
        client, waiting = [
            await stack.enter_async_context(AsyncClient(address, timeout=600.0)) for address in verifiers
        ]
        delays = Delays(options.round_trips, stack)
        await delays.attach(client, TREE, drafters[0])
        await delays.attach(client, CHAIN, drafters[1])
        for depth, address in zip(options.depths, drafters[2:], strict=True):
            await delays.attach(waiting, in_turn(depth), address)

        greedy = [Arrangement(PLAIN_NAME, client, PLAIN_NAME)]
        for milliseconds in options.round_trips:
            for policy in (TREE, CHAIN):
                name = at(policy, milliseconds)
                greedy.append(Arrangement(name, client, PLAIN_NAME, Speculation(drafter=name)))
            for depth in options.depths:
                name = at(in_turn(depth), milliseconds)
                speculation = Speculation(drafter=name, max_draft_tokens=depth)
                greedy.append(Arrangement(name, waiting, PLAIN_NAME, speculation))
        prompts = [[await client.tokenize(text)] for text in held_out_prompts(options.prompts)]
        comparisons = [Comparison(greedy, prompts, options.max_tokens)]
        nearest = Speculation(drafter=at(TREE, options.round_trips[0]))
        for temperature in TEMPERATURES:
            plain = f"{PLAIN_NAME}, T = {temperature:g}"
            warm = [
                Arrangement(plain, client, plain, temperature=temperature),
                Arrangement(f"{TREE}, T = {temperature:g}", client, plain, nearest, temperature),
            ]
            comparisons.append(Comparison(warm, prompts, options.max_tokens))
        measured = await measure(comparisons, options.runs, verbose=options.verbose)
        if options.cases is not None:
            outputs = [batch.token_ids[0] for batch in measured.batches[PLAIN_NAME][0]]
            texts = drafted_places(draft, [prompt for (prompt,) in prompts], outputs)
            cases = await simulation_cases(measured, options, client, waiting, drafters, texts)
            options.cases.write_text(json.dumps({"cases": cases}, indent=2))
        return measured


async def simulation_cases(
    measured: Measured,
    options: argparse.Namespace,
    client: AsyncClient,
    waiting: AsyncClient,
    drafters: Sequence[str],
    texts: Sequence[Sequence[Place]],
) -> list[dict[str, object]]:
    """Returns the greedy measurements as cases for pipeline_sim.py, one per round trip. drafters: of the tree, of the
    chain, and of each K."""
    planner = (await client.model_info()).engine.planner
    in_turns = (await waiting.model_info()).engine.planner.step_costs
    longest = drafters[2 + options.depths.index(max(options.depths))]
    tree, chain_in_turns = [(await client.drafters.load_state(each)).step_costs for each in (drafters[0], longest)]
    # Services that take turns do not slow each other down, unlike services that work at the same time.
    steps = {"draft_then_verify": (in_turns, chain_in_turns)}
    calibrations = {each.drafter: each for each in planner.calibrations}
    cases = []
    for milliseconds in options.round_trips:
        names = {
            "plain": PLAIN_NAME,
            "draft_then_verify": at(in_turn(max(options.depths)), milliseconds),
            "chain_ahead": at(CHAIN, milliseconds),
            "tree_ahead": at(TREE, milliseconds),
        }
        rates = {policy: measured.rate(name).median for policy, name in names.items()}
        sizes = {
            "tokens": options.max_tokens,
            "requests": 5 * options.prompts,  # the services had learned from earlier requests
            "max_tree_nodes": 64,
            "draft_length": max(options.depths),
        }
        calibration = calibrations[at(TREE, milliseconds)]
        name = f"{milliseconds:g} ms"
        cases.append(
            simulation_case(name, planner.step_costs, tree, calibration, milliseconds, steps, texts, rates, **sizes)
        )
    return cases


def best_in_turn(measured: Measured, depths: Sequence[int], milliseconds: float) -> str:
    """Returns the fastest draft-then-verify at a round trip."""
    names = [at(in_turn(depth), milliseconds) for depth in depths]
    return max(names, key=lambda name: measured.rate(name).median)


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"{options.prompts} held-out prompts, {options.max_tokens} tokens, one at a time, "
        "greedy unless said"
    }
    for name in measured.batches:
        found[f"{name}, tokens/s"] = measured.rate(name)
        if not name.startswith(PLAIN_NAME):
            found[f"{name}, speculation"] = (
                f"{measured.acceptance_length(name):.2f} tokens and {measured.nodes_per_step(name):.1f} draft tokens "
                f"a step, {measured.hit_share(name):.1%} hits"
            )
    for milliseconds in options.round_trips:
        tree, chain = at(TREE, milliseconds), at(CHAIN, milliseconds)
        best = best_in_turn(measured, options.depths, milliseconds)
        found[f"{tree} / plain"] = measured.ratio(tree, PLAIN_NAME)
        found[f"{tree} / {best}"] = measured.ratio(tree, best)
        found[f"{chain} / {best}"] = measured.ratio(chain, best)
        if milliseconds != options.round_trips[0]:
            nearest = at(TREE, options.round_trips[0])
            found[f"{tree} / {nearest}"] = measured.ratio(tree, nearest)
    hits = {"greedy": at(TREE, options.round_trips[0])}
    hits |= {f"T = {temperature:g}": f"{TREE}, T = {temperature:g}" for temperature in TEMPERATURES}
    found["share of hits"] = ", ".join(f"{name} {measured.hit_share(each):.1%}" for name, each in hits.items())
    for temperature in TEMPERATURES:
        each = f"{TREE}, T = {temperature:g}"
        found[f"{each} / plain"] = measured.ratio(each, f"{PLAIN_NAME}, T = {temperature:g}")
    return found | measured.figures()


def numbers(text: str) -> list[float]:
    """Parses comma-separated numbers; returns them in ascending order."""
    return sorted({float(number) for number in text.split(",")})


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--round-trips", type=numbers, default=[0, 1, 5, 20, 50], help="round trips in milliseconds, comma-separated"
    )
    parser.add_argument(
        "--depths", type=counts, default=[3, 5, 8], help="values of K for draft-then-verify, comma-separated"
    )
    parser.add_argument("--cases", type=Path, help="file to write for pipeline_sim.py --validate")
    add_pair_options(parser)
    add_run_options(parser, prompts=5, max_tokens=64)
    options = parser.parse_args()
    sys.exit(measure_and_report("rtt", run, figures, options))


if __name__ == "__main__":
    main()
