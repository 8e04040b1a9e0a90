"""Requests with a predicted output: it is drafted from without any attached drafter, and changes no token."""

from typing import Any

import pytest

from draftwire.v1.speculation_pb2 import Prediction, SpeculationOptions
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import InProcessVerifier, greedy, order, sampled
from tests.harness.verifier.running import failure


def expecting(prediction: Prediction, **fields: Any) -> Any:
    return SpeculationOptions(prediction=prediction, **fields)


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
class TestNoTokenDependsOnIt:
    async def test_a_right_one_saves_most_steps(self, verifier: InProcessVerifier, sampling: Any) -> None:
        plain = await verifier.plain(order(sampling=sampling))
        right = expecting(Prediction(token_ids=plain.token_ids))
        output = await verifier.generate(order(sampling=sampling, speculation=right))
        assert output.token_ids == plain.token_ids
        assert output.finished.speculation.steps < 10
        assert [each.name for each in output.finished.speculation.drafters] == ["prediction"]
        assert output.sources.count("prediction") > 15

    async def test_a_half_right_one(self, verifier: InProcessVerifier, sampling: Any) -> None:
        plain = await verifier.plain(order(sampling=sampling))
        edited = [*plain.token_ids[:7], 3, 3, *plain.token_ids[10:]]
        output = await verifier.generate(order(sampling=sampling, speculation=expecting(Prediction(token_ids=edited))))
        assert output.token_ids == plain.token_ids
        assert output.sources[12:].count("prediction") > 5

    async def test_a_wrong_one(self, verifier: InProcessVerifier, sampling: Any) -> None:
        plain = await verifier.plain(order(sampling=sampling))
        output = await verifier.generate(
            order(sampling=sampling, speculation=expecting(Prediction(token_ids=[3, 4] * 60)))
        )
        assert output.token_ids == plain.token_ids

    async def test_beside_drafters(self, verifier: InProcessVerifier, twin: InProcessDrafter, sampling: Any) -> None:
        plain = await verifier.plain(order(sampling=sampling))
        await verifier.pool.membership.attach("local:ngram?min=1", "")
        await verifier.pool.membership.attach("twin:1", "")
        right = expecting(Prediction(token_ids=plain.token_ids), drafters=2)
        output = await verifier.generate(order(sampling=sampling, speculation=right))
        assert output.token_ids == plain.token_ids
        assert "prediction" in output.sources


async def test_as_text(verifier: InProcessVerifier) -> None:
    text = "the quick brown fox"
    expected = verifier.verifier.model.tokenizer.encode(text, add_special_tokens=False)
    read = await verifier.verifier.reader.read(order(speculation=expecting(Prediction(text=text))))
    assert read.prediction == expected


async def test_a_resumed_request_goes_on_in_it(verifier: InProcessVerifier) -> None:
    plain = await verifier.plain(order())
    right = expecting(Prediction(token_ids=plain.token_ids))
    rest = await verifier.generate(order(resume_token_ids=plain.token_ids[:7], speculation=right))
    assert rest.token_ids == plain.token_ids[7:]
    assert rest.sources.count("prediction") > 10


@pytest.mark.parametrize("off", [{"enabled": False}, {"max_draft_tokens": 0}])
async def test_without_speculation_it_is_not_used(verifier: InProcessVerifier, off: dict[str, Any]) -> None:
    output = await verifier.generate(order(speculation=expecting(Prediction(token_ids=[3, 4]), **off)))
    assert output.finished.speculation.draft_tokens == 0


async def test_what_was_learned_of_it_goes_with_the_request(verifier: InProcessVerifier) -> None:
    await verifier.generate(order(speculation=expecting(Prediction(token_ids=[3, 4]))))
    await verifier.until(lambda: not verifier.engine.planner.models)
    assert not verifier.engine._local.busy
    assert not verifier.verifier.status().planner.calibrations


async def test_its_name_is_taken(verifier: InProcessVerifier) -> None:
    assert await failure(verifier.pool.membership.attach("a:1", "prediction")) == ("INVALID_ARGUMENT", "INVALID_FIELD")


@pytest.mark.parametrize(
    ("prediction", "reason", "field"),
    [
        (Prediction(text="a", token_ids=[3]), "INVALID_FIELD", "speculation.prediction"),
        (Prediction(token_ids=[3] * 100_000), "INVALID_FIELD", "speculation.prediction"),
        (Prediction(text="a b c " * 50_000), "CONTEXT_EXCEEDED", "speculation.prediction.text"),
        (Prediction(token_ids=[3, 1 << 31]), "TOKEN_OUT_OF_RANGE", "speculation.prediction.token_ids[1]"),
    ],
)
async def test_bad_ones(verifier: InProcessVerifier, prediction: Prediction, reason: str, field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        await verifier.generate(order(speculation=expecting(prediction)))
    assert (caught.value.code.name, caught.value.reason_name) == ("INVALID_ARGUMENT", reason)
    assert [violation.field for violation in caught.value.field_violations] == [field]
