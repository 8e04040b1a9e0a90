"""Requests with each acceptance rule, against real and lying drafters, in one process."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.proposal_pb2 import DraftDistribution
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import AcceptancePreset, AcceptanceRule, SpeculationOptions
from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.handshake import CAPABILITY_DISTRIBUTIONS
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import TOKENS, InProcessVerifier, order, sampled
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, batch, hello

COUPLED = AcceptanceRule.ACCEPTANCE_RULE_COUPLED
REJECTION = AcceptanceRule.ACCEPTANCE_RULE_REJECTION
TYPICAL = AcceptanceRule.ACCEPTANCE_RULE_TYPICAL
THRESHOLD = AcceptanceRule.ACCEPTANCE_RULE_THRESHOLD


def ask(sampling: SamplingParams | None = None, **options: Any) -> GenerateRequest:
    return order(sampling=sampling or sampled(), speculation=SpeculationOptions(**options))


def counts(verifier: InProcessVerifier) -> dict[Any, Any]:
    return {each.rule: each for each in verifier.verifier.status().acceptance}


async def test_rejection(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    await verifier.pool.membership.attach("twin:1", "", trusted=True)
    assert verifier.state("twin:1").trusted
    output = await verifier.generate(ask(acceptance=REJECTION))
    stats = output.finished.speculation
    assert (stats.acceptance, stats.lossless) == (REJECTION, True)
    assert not stats.HasField("threshold")
    assert stats.accepted_tokens == sum(source is not None for source in output.sources)
    # The two distributions differ only in the cut to 32 tokens.
    assert stats.accepted_tokens > 0.6 * stats.draft_tokens > 6
    count = counts(verifier)[REJECTION]
    assert (count.requests, count.tokens, count.accepted_tokens) == (1, TOKENS, stats.accepted_tokens)
    assert verifier.state("twin:1").accepted_tokens == stats.accepted_tokens


async def test_only_trusted_drafters_draft_for_rejection(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.drafts_awaited = False
    output = await verifier.generate(ask(acceptance=REJECTION))
    assert output.finished.speculation.draft_tokens == 0
    assert len(output.token_ids) == TOKENS
    with pytest.raises(ServiceError, match="not trusted") as caught:
        await verifier.generate(ask(acceptance=REJECTION, drafter="twin:1"))
    assert [violation.field for violation in caught.value.field_violations] == ["speculation.drafter"]
    with pytest.raises(ServiceError, match="not trusted") as caught:
        await verifier.generate(ask(acceptance=REJECTION, drafter_names=["twin:1", "twin:1x"]))
    assert [violation.field for violation in caught.value.field_violations] == ["speculation.drafter_names[0]"]


async def test_trust_may_be_withdrawn(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    await verifier.pool.membership.attach("twin:1", "", trusted=True)
    verifier.engine.hold(2)
    running = asyncio.create_task(verifier.generate(ask(acceptance=REJECTION)))
    await verifier.until(lambda: verifier.state("twin:1").sequences)
    await verifier.pool.membership.attach("twin:1", "", trusted=False)
    assert verifier.state("twin:1").sequences == 0
    verifier.engine.drafts_awaited = False
    verifier.engine.go_on()
    assert len((await running).token_ids) == TOKENS
    await verifier.pool.membership.attach("twin:1", "")
    assert not verifier.state("twin:1").trusted


async def test_a_trusted_drafter_has_to_know_how(verifier: InProcessVerifier) -> None:
    verifier.network.listen("old:1", ScriptedDrafter().converse)
    await verifier.pool.membership.attach("old:1", "", trusted=True)
    with pytest.raises(ServiceError, match="does not report the distributions"):
        await verifier.generate(ask(acceptance=REJECTION, drafter="old:1"))
    output = await verifier.generate(ask(acceptance=REJECTION))
    assert output.finished.speculation.draft_tokens == 0


async def test_lookup_drafts_for_rejection(verifier: InProcessVerifier) -> None:
    await verifier.pool.membership.attach("local:ngram?min=1", "")
    output = await verifier.generate(
        order([5, 9, 5, 9, 5, 9], sampling=sampled(), speculation=SpeculationOptions(acceptance=REJECTION))
    )
    assert output.finished.speculation.draft_tokens > 0
    assert output.finished.speculation.lossless


@pytest.mark.parametrize(
    ("options", "settled"),
    [
        ({"acceptance": TYPICAL}, {"posterior_threshold": 0.09, "posterior_alpha": 0.3}),
        ({"acceptance": TYPICAL, "posterior_alpha": 0.5}, {"posterior_threshold": 0.09, "posterior_alpha": 0.5}),
        ({"acceptance": THRESHOLD, "threshold": 0.25}, {"threshold": 0.25}),
        (
            {"preset": AcceptancePreset.ACCEPTANCE_PRESET_CODE},
            {"threshold": 0.75, "preset": AcceptancePreset.ACCEPTANCE_PRESET_CODE},
        ),
        (
            {"acceptance": THRESHOLD, "dynamic_temperature": True},
            {"threshold": 0.5, "preset": AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE},
        ),
    ],
)
async def test_lossy_rules(
    verifier: InProcessVerifier, stranger: InProcessDrafter, options: dict[str, Any], settled: dict[str, Any]
) -> None:
    await verifier.pool.membership.attach("stranger:1", "")
    output = await verifier.generate(ask(**options))
    stats = output.finished.speculation
    rule = TYPICAL if options.get("acceptance") == TYPICAL else THRESHOLD
    assert (stats.acceptance, stats.lossless) == (rule, False)
    assert {name: getattr(stats, name) for name in settled} == settled
    assert len(output.token_ids) == TOKENS
    drafter = verifier.state("stranger:1")
    assert (drafter.draft_tokens, drafter.accepted_tokens) == (0, 0)
    assert (drafter.lossy_draft_tokens, drafter.lossy_accepted_tokens) == (stats.draft_tokens, stats.accepted_tokens)
    count = counts(verifier)[rule]
    assert (count.requests, count.draft_tokens) == (1, stats.draft_tokens)


async def test_a_low_threshold_lets_the_draft_model_write(
    verifier: InProcessVerifier, stranger: InProcessDrafter
) -> None:
    """Lossy rules change the output: it is no longer the target's."""
    await verifier.pool.membership.attach("stranger:1", "")
    request = ask(SamplingParams(temperature=2.0, seed=7), acceptance=THRESHOLD, threshold=1e-9)
    output = await verifier.generate(request)
    assert output.token_ids != (await verifier.plain(request)).token_ids
    assert output.finished.speculation.accepted_tokens > 10


@pytest.mark.parametrize("rule", [REJECTION, TYPICAL, THRESHOLD])
async def test_without_noise_every_rule_is_the_coupled_one(
    verifier: InProcessVerifier, stranger: InProcessDrafter, rule: Any
) -> None:
    """Without noise, any drafter may draft, trusted or not, and the output is that of plain decoding."""
    await verifier.pool.membership.attach("stranger:1", "")
    request = ask(SamplingParams(temperature=0, seed=3), acceptance=rule, drafter="stranger:1")
    output = await verifier.generate(request)
    assert output.token_ids == (await verifier.plain(request)).token_ids
    stats = output.finished.speculation
    assert (stats.acceptance, stats.lossless, stats.draft_tokens > 0) == (COUPLED, True, True)


async def test_rules_share_a_batch_and_the_coupled_one_stays_exact(
    verifier: InProcessVerifier, twin: InProcessDrafter
) -> None:
    await verifier.pool.membership.attach("twin:1", "", trusted=True)
    asked = [
        ask(SamplingParams(temperature=0.9, seed=seed), acceptance=rule)
        for seed in range(2)
        for rule in (COUPLED, REJECTION, TYPICAL, THRESHOLD)
    ]
    outputs = await asyncio.gather(*(verifier.generate(request) for request in asked))
    for request, output in zip(asked, outputs, strict=True):
        assert output.finished.speculation.acceptance == request.speculation.acceptance
        assert output.finished.speculation.draft_tokens > 0
        if request.speculation.acceptance == COUPLED:
            assert output.token_ids == (await verifier.plain(request)).token_ids


# ---- drafters that misreport their distributions


def scripted(distributions: Sequence[DraftDistribution] | None) -> ScriptedDrafter:
    """Returns a drafter that draws the tokens 7 and 8 below the last committed one."""

    def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
        return [batch(opening.proposal([7, 8], parent_ids=[0, 0], distributions=distributions))]

    return ScriptedDrafter(answer=answer, greeting=hello(capabilities=[CAPABILITY_DISTRIBUTIONS]))


GOOD = DraftDistribution(token_ids=[7, 8, 9], probabilities=[0.5, 0.25, 0.25])


async def test_what_tokens_were_drawn_from(verifier: InProcessVerifier) -> None:
    drafter = scripted([GOOD])
    verifier.network.listen("good:1", drafter.converse)
    await verifier.pool.membership.attach("good:1", "", trusted=True)
    output = await verifier.generate(ask(acceptance=REJECTION, drafter="good:1"))
    assert len(output.token_ids) == TOKENS
    assert not drafter.errors
    assert drafter.verdicts > 0
    assert drafter.opened[0].acceptance == REJECTION
    await verifier.generate(ask(drafter="good:1"))
    assert drafter.opened[-1].acceptance == AcceptanceRule.ACCEPTANCE_RULE_UNSPECIFIED


BAD = {
    "none": (None, "distributions"),
    "another node": ([DraftDistribution(parent_id=9, token_ids=[7], probabilities=[1])], "distributions[0].parent_id"),
    "twice": ([GOOD, GOOD], "distributions[1].parent_id"),
    "empty": ([DraftDistribution()], "distributions[0].token_ids"),
    "too long": (
        [DraftDistribution(token_ids=[*range(300)], probabilities=[1 / 300] * 300)],
        "distributions[0].token_ids",
    ),
    "unequal": ([DraftDistribution(token_ids=[7, 8], probabilities=[1])], "distributions[0].probabilities"),
    "a token twice": (
        [DraftDistribution(token_ids=[7, 8, 8], probabilities=[0.5, 0.25, 0.25])],
        "distributions[0].token_ids",
    ),
    "beyond the vocabulary": (
        [DraftDistribution(token_ids=[7, 8, 9999], probabilities=[0.5, 0.25, 0.25])],
        "distributions[0].token_ids[2]",
    ),
    "negative": (
        [DraftDistribution(token_ids=[7, 8, 9], probabilities=[0.5, 0.75, -0.25])],
        "distributions[0].probabilities[2]",
    ),
    "no number": (
        [DraftDistribution(token_ids=[7, 8], probabilities=[0.5, float("nan")])],
        "distributions[0].probabilities[1]",
    ),
    "not summing to 1": (
        [DraftDistribution(token_ids=[7, 8], probabilities=[0.5, 0.25])],
        "distributions[0].probabilities",
    ),
    "not what was drawn": (
        [DraftDistribution(token_ids=[7, 9], probabilities=[0.5, 0.5])],
        "distributions[0].token_ids",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_is_refused_for_its_sequence_only(verifier: InProcessVerifier, name: str) -> None:
    distributions, field = BAD[name]
    drafter = scripted(distributions)
    verifier.network.listen("bad:1", drafter.converse)
    await verifier.pool.membership.attach("bad:1", "", trusted=True)
    output = await verifier.generate(ask(acceptance=REJECTION, drafter="bad:1"))
    assert len(output.token_ids) == TOKENS
    await verifier.until(lambda: drafter.errors)
    assert "MALFORMED_PROPOSAL" in str(drafter.errors[0].status.details[0].value)
    assert drafter.errors[0].status.message.startswith(f"{field}:")
    assert verifier.state("bad:1").sequences == 0


async def test_distributions_nobody_asked_for(verifier: InProcessVerifier) -> None:
    drafter = scripted([GOOD])
    verifier.network.listen("bad:1", drafter.converse)
    await verifier.pool.membership.attach("bad:1", "", trusted=True)
    request = ask()
    assert (await verifier.generate(request)).token_ids == (await verifier.plain(request)).token_ids
    await verifier.until(lambda: drafter.errors)
    assert drafter.errors[0].status.message == "distributions: were not requested"
