"""Drafting: a long conversation in which every proposal is checked, credit, and draws."""

from __future__ import annotations

from draftwire.v1 import drafter_service_pb2, model_info_pb2, sampling_pb2, speculation_pb2
from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest, other
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.openings import no_error
from draftwire_tools.check_drafter.verifier_side import VerifierSide

DRAFTING = Trials()
SILENT = "drafted nothing for a prompt that repeats itself"
_ROUNDS = 8


async def _accept(side: VerifierSide, most: int) -> None:
    """Commits some of the drafter's own nodes, and the token after them with which the prompt goes on."""
    mirror = side.mirrors[1]
    path = mirror.best_path()[:most]
    following = (mirror.tokens + path)[-4]
    await side.commit({1: [*path, following]})


async def _reject(side: VerifierSide) -> None:
    """Commits a token that is not the drafter's first guess."""
    mirror = side.mirrors[1]
    guess = (mirror.best_path() or [mirror.tokens[-4]])[0]
    await side.commit({1: [other(mirror.tokens, guess)]})


@DRAFTING.of("verdict.tree")
async def a_conversation(drafter: DrafterUnderTest) -> str:
    """Nodes accepted, rejected, and verdicts that cross proposals."""
    async with drafter.drafting() as side:
        for number in range(_ROUNDS):
            await side.nodes(1)
            if number % 3 == 1:
                await _reject(side)
            else:
                await _accept(side, number % 4)
            if number % 4 == 3:  # the next verdict follows before the drafter can have answered
                await _accept(side, 1)
            if number % 2:
                await side.settle()
        await side.nodes(1)
        await side.settle()
        no_error(side, "an error for a correct verdict")
        proposals = side.mirrors[1].proposals
    if not proposals:
        raise Skip(SILENT)
    return f"{proposals} proposals"


@DRAFTING.of("credit.live")
async def small_credit(drafter: DrafterUnderTest) -> None:
    """Credits of 1 and 3, also while nodes are accepted."""
    proposals = 0
    for credit in (1, 3):
        async with drafter.drafting(max_tree_nodes=credit) as side:
            for _ in range(4):
                await side.nodes(1)
                await side.settle()
                await _accept(side, 2)
            await side.settle()
            no_error(side, "an error for a correct verdict")
            proposals += side.mirrors[1].proposals
    if not proposals:
        raise Skip(SILENT)


@DRAFTING.of("credit.smaller")
async def smaller_credit(drafter: DrafterUnderTest) -> None:
    """Verdicts that ask for 2 nodes, then for as many as the opening allows."""
    async with drafter.drafting() as side:
        for number in range(4):
            await side.nodes(1)
            await side.settle()
            mirror = side.mirrors[1]
            guess = (mirror.best_path() or [mirror.tokens[-4]])[0]
            # Nodes that survive may stay, so the tree begins again.
            await side.commit({1: [other(mirror.tokens, guess)]}, 2 if number < 3 else None)
        await side.settle()
        if not side.mirrors[1].proposals:
            raise Skip(SILENT)


@DRAFTING.of("proposal.max_length")
async def near_the_end(drafter: DrafterUnderTest) -> None:
    """A request that ends 2 tokens after its prompt."""
    prompt = drafter.prompt()
    async with drafter.drafting(max_length=len(prompt) + 2) as side:
        await side.nodes(1)
        await side.settle()
        if not side.mirrors[1].proposals:
            raise Skip(SILENT)


@DRAFTING.of("proposal.tokens")
async def smaller_vocabulary(drafter: DrafterUnderTest) -> str | None:
    """A target with fewer token ids: a vocabulary may be padded to another size."""
    if not drafter.vocab_size:
        raise Skip("the size of its vocabulary is unknown: see --vocab-size")
    size = max(max(drafter.prompt()) + 1, drafter.vocab_size // 2)
    model = model_info_pb2.ModelInfo(
        model_id="padded", vocab_size=size, tokenizer_sha256=drafter.hello.model.tokenizer_sha256
    )
    sampling = sampling_pb2.SamplingParams(temperature=3.0, seed=11)
    async with drafter.verifier(model=model) as side:
        await side.open(1, drafter.prompt(), sampling=sampling, max_tree_nodes=64)
        await side.opened(1)
        for _ in range(3):
            await side.nodes(1)
            await _accept(side, 1)
        await side.settle()
        if not side.mirrors[1].proposals:
            raise Skip(SILENT)
    return None


@DRAFTING.of("gathering.sent")
async def gathers(drafter: DrafterUnderTest) -> None:
    """A step that it is not told of, one of a tenth of a second, and one of a minute that a verdict ends."""
    if "gathering" not in drafter.hello.capabilities:
        raise Skip("it has not the capability gathering")
    async with drafter.drafting() as side:
        await side.nodes(1)
        for seconds in (0.0, 0.1, 60.0):
            await side.settle()
            await _accept(side, 0)
            if seconds:
                await side.send(step_begun=drafter_service_pb2.StepBegun(seconds=seconds))
            if seconds > 1:
                await _accept(side, 0)
            if not await side.nodes(1):
                raise Breach(f"no nodes after a StepBegun of {seconds:g} seconds") if seconds else Skip(SILENT)


@DRAFTING.of("draws.reported")
async def draws(drafter: DrafterUnderTest) -> None:
    """An opening with the rule of rejection."""
    if "distributions" not in drafter.hello.capabilities:
        raise Skip("it has not the capability distributions")
    sampling = sampling_pb2.SamplingParams(temperature=1.0, seed=11)
    async with drafter.drafting(acceptance=speculation_pb2.ACCEPTANCE_RULE_REJECTION, sampling=sampling) as side:
        for number in range(4):
            await side.nodes(1)
            await side.settle()
            await _accept(side, number)
        await side.settle()
        no_error(side, "an error for a correct verdict")
        if not side.mirrors[1].proposals:
            raise Breach("has the capability distributions, but drafts nothing under the rule of rejection")
