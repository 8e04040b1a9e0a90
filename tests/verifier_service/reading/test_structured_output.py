"""Structured outputs have the requested form, and the same tokens with any drafter as without one."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from draftwire.v1.speculation_pb2 import AcceptanceRule, SpeculationOptions
from draftwire.v1.structured_output_pb2 import Choices, StructuredOutput
from draftwire.v1.verifier_service_pb2 import FinishReason
from draftwire_core.engine.logits import grammar_compiler, grammar_trial
from draftwire_core.engine.logits.grammar_trial import GrammarTrial
from draftwire_core.engine.text.token_table import TokenTable
from draftwire_core.runtime.errors import ServiceError
from tests.harness.hostile_forms import long_names, patterns
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    InProcessVerifier,
    Output,
    greedy,
    order,
)
from tests.harness.services.services import Services
from tests.harness.verifier.json_schemas import SCHEMAS, record, text

pytestmark = pytest.mark.processes  # forms are tried in one

MODELS = Path(__file__).resolve().parents[3] / "models"
STOP, LENGTH = FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_LENGTH
PROMPT = "# The configuration as JSON:\nconfig = "
SHORT = record({"level": {"enum": ["debug", "größer"]}, "on": {"type": "boolean"}})
FORM = record({"name": text(10), "level": {"enum": ["debug", "warning"]}, "on": {"type": "boolean"}})


@pytest.fixture(scope="module")
def trials() -> list[GrammarTrial]:
    """The process that tries forms for all verifiers of these tests, once one has needed it."""
    return []


@pytest.fixture
async def bundled(
    services: Services, trials: list[GrammarTrial], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessVerifier]:
    """A verifier of the bundled target."""

    def trial(tokens: Callable[[], TokenTable]) -> GrammarTrial:
        if not trials:
            trials.append(GrammarTrial(tokens))
        return trials[0]

    monkeypatch.setattr(grammar_compiler, "GrammarTrial", trial)
    async with services.in_process_verifier(MODELS / "target", max_tree_nodes=12) as made:
        yield made


@pytest.fixture
async def drafted(services: Services, bundled: InProcessVerifier) -> AsyncIterator[InProcessVerifier]:
    """The same verifier with two drafters that know nothing of forms: the bundled draft model, at two addresses."""
    async with services.in_process_drafter(MODELS / "draft") as drafter:
        for address in ("draft:1", "draft:2"):
            bundled.network.listen(address, drafter.servicer.converse)
        yield bundled
        await bundled.until(lambda: drafter.model.pool.used == 0)


def asking(verifier: InProcessVerifier, form: dict[str, Any] | StructuredOutput | None, **fields: Any) -> Any:
    """Returns a request for a JSON schema, another form, or none."""
    if isinstance(form, dict):
        form = StructuredOutput(json_schema=json.dumps(form))
    prompt = verifier.verifier.model.tokenizer.encode(PROMPT)
    return order(prompt, **({"max_tokens": 160, "ignore_eos": False, "structured_output": form} | fields))


def warm(seed: int = 7) -> Any:
    sampling = greedy()
    sampling.temperature, sampling.seed = 0.8, seed
    return sampling


def ahead(form: dict[str, Any], on: bool) -> StructuredOutput:
    return StructuredOutput(json_schema=json.dumps(form), jump_ahead=on)


KINDS = ("flat", "optional properties", "multipleOf", "unicode", "pattern", "recursion", "oneOf by a tag", "tuple")
"""Schemas that between them have objects, arrays, numbers, texts, references and alternatives."""


async def check_values(bundled: InProcessVerifier, name: str, *requests: Any) -> None:
    """The requests' values are allowed by a schema, and the same without jumping ahead."""
    schema = SCHEMAS[name]
    for request in requests:
        output = await bundled.generate(request)
        assert output.finished.finish_reason == STOP, output.text
        value = json.loads(output.text)
        assert jsonschema_rs.is_valid(schema, value), output.text
        assert (await bundled.plain(request)).token_ids == output.token_ids


@pytest.mark.parametrize("name", KINDS)
async def test_values_that_the_schema_allows(bundled: InProcessVerifier, name: str) -> None:
    await check_values(bundled, name, asking(bundled, SCHEMAS[name], sampling=warm(3), ignore_eos=True))


async def test_values_end_by_themselves(bundled: InProcessVerifier) -> None:
    await check_values(
        bundled,
        "flat",
        asking(bundled, SCHEMAS["flat"], sampling=greedy()),
        asking(bundled, SCHEMAS["flat"], sampling=warm(1)),
    )


@pytest.mark.slow
class TestEverySchema:
    @pytest.mark.parametrize("name", SCHEMAS)
    async def test_values_that_the_schema_allows(self, bundled: InProcessVerifier, name: str) -> None:
        await check_values(
            bundled,
            name,
            asking(bundled, SCHEMAS[name], sampling=greedy()),
            *(asking(bundled, SCHEMAS[name], sampling=warm(seed)) for seed in (1, 2)),
            asking(bundled, SCHEMAS[name], sampling=warm(3), ignore_eos=True),
        )


OTHERS: dict[str, tuple[StructuredOutput, str]] = {
    "regex": (StructuredOutput(regex=r"[a-z]{3,6}@[a-z]{1,4}\.(com|org)"), r"[a-z]{3,6}@[a-z]{1,4}\.(com|org)"),
    "lark": (
        StructuredOutput(lark='start: "SELECT " name (", " name)~0..2 ";"\nname: /[a-z]{1,5}/'),
        "SELECT [a-z]{1,5}(, [a-z]{1,5}){0,2};",
    ),
    "ebnf": (
        StructuredOutput(ebnf='root ::= "say " word [!?]\nword ::= "yes" | "n" "o" | "日本語"'),
        "say (yes|no|日本語)[!?]",
    ),
    "choice": (StructuredOutput(choice=Choices(texts=["alpha", "beta", "al", "größer"])), "alpha|beta|al|größer"),
}


async def check_other_form(bundled: InProcessVerifier, name: str, ignore_eos: bool, *samplings: Any) -> None:
    form, expression = OTHERS[name]
    for sampling in samplings:
        request = asking(bundled, form, sampling=sampling, ignore_eos=ignore_eos)
        output = await bundled.generate(request)
        assert output.finished.finish_reason == STOP
        assert re.fullmatch(expression, output.text), output.text
        assert (await bundled.plain(request)).token_ids == output.token_ids


@pytest.mark.parametrize(("name", "ignore_eos"), [*zip(OTHERS, [False, True] * 2, strict=True)])
async def test_other_forms(bundled: InProcessVerifier, name: str, ignore_eos: bool) -> None:
    await check_other_form(bundled, name, ignore_eos, warm(1) if ignore_eos else greedy())


@pytest.mark.slow
class TestOtherFormsAndSeeds:
    @pytest.mark.parametrize("name", OTHERS)
    @pytest.mark.parametrize("ignore_eos", [False, True])
    async def test_other_forms(self, bundled: InProcessVerifier, name: str, ignore_eos: bool) -> None:
        await check_other_form(bundled, name, ignore_eos, greedy(), warm(1), warm(2), warm(3))


async def test_any_object(bundled: InProcessVerifier) -> None:
    for seed in range(3):
        output = await bundled.generate(
            asking(bundled, StructuredOutput(json_object=True), sampling=warm(seed), max_tokens=200)
        )
        if output.finished.finish_reason == STOP:
            break
    assert isinstance(json.loads(output.text), dict)


async def check_none_and_many(drafted: InProcessVerifier, sampling: Any, *forms: dict[str, Any]) -> None:
    """The tokens of forms are the same without drafters, with one and with two, jumping ahead or not."""
    requests = [asking(drafted, ahead(form, on), sampling=sampling) for form in forms for on in (True, False)]
    plain = [(await drafted.plain(request)).token_ids for request in requests]
    assert plain[::2] == plain[1::2]
    assert [(await drafted.generate(request)).token_ids for request in requests] == plain
    await drafted.pool.membership.attach("draft:1", "")
    drafted.engine.drafts_awaited = True
    assert [(await drafted.generate(request)).token_ids for request in requests] == plain
    await drafted.pool.membership.attach("local:ngram?min=1", "")
    for request in requests:
        request.speculation.drafters = 2
    outputs = await asyncio.gather(*(drafted.generate(request) for request in requests))
    assert [output.token_ids for output in outputs] == plain


async def check_swap(drafted: InProcessVerifier, on: bool) -> None:
    """The tokens of a form are the same when drafters are swapped, jumping ahead or not."""
    request = asking(drafted, ahead(FORM, on), sampling=warm())
    plain = await drafted.plain(request)
    await drafted.pool.membership.attach("draft:1", "")
    drafted.engine.hold(3)
    output, moved = Output(), 0
    old, new = "draft:1", "draft:2"
    async with asyncio.timeout(PATIENCE), drafted.running(request) as running:
        async for event in running.events():
            output.take(event)
            if event.WhichOneof("event") == "chunk":
                moved += (await drafted.pool.changes.swap(old, new))[1]
                old, new = new, old
                drafted.engine.hold(3)
    assert output.token_ids == plain.token_ids
    assert moved


RULES = ("REJECTION", "TYPICAL", "THRESHOLD")


async def check_rule(drafted: InProcessVerifier, rule: str, seeds: int) -> None:
    """Outputs under an acceptance rule keep to the form. seeds: how many are tried."""
    await drafted.pool.membership.attach("draft:1", "")
    drafted.engine.drafts_awaited = True
    number = AcceptanceRule.Value(f"ACCEPTANCE_RULE_{rule}")
    for seed in range(seeds):
        output = await drafted.generate(
            asking(drafted, FORM, sampling=warm(seed), speculation=SpeculationOptions(acceptance=number))
        )
        assert output.finished.finish_reason == STOP
        assert jsonschema_rs.is_valid(FORM, json.loads(output.text))


@pytest.mark.slow
class TestNoTokenOfSeveralFormsDependsOnDrafters:
    @pytest.mark.parametrize("sampling", [greedy(), warm()], ids=["greedy", "sampled"])
    async def test_none_and_many(self, drafted: InProcessVerifier, sampling: Any) -> None:
        await check_none_and_many(drafted, sampling, FORM, SCHEMAS["recursion"], SCHEMAS["unicode"])

    @pytest.mark.parametrize("on", [True, False])
    async def test_a_swap_in_the_middle(self, drafted: InProcessVerifier, on: bool) -> None:
        await check_swap(drafted, on)

    @pytest.mark.parametrize("rule", RULES)
    async def test_other_rules_keep_to_the_form(self, drafted: InProcessVerifier, rule: str) -> None:
        await check_rule(drafted, rule, seeds=2)


class TestNoTokenDependsOnDrafters:
    async def test_none_and_many(self, drafted: InProcessVerifier) -> None:
        await check_none_and_many(drafted, warm(), SHORT)

    async def test_a_swap_in_the_middle(self, drafted: InProcessVerifier) -> None:
        await check_swap(drafted, True)

    @pytest.mark.parametrize("rule", RULES)
    async def test_other_rules_keep_to_the_form(self, drafted: InProcessVerifier, rule: str) -> None:
        await check_rule(drafted, rule, seeds=1)


class TestJumpAhead:
    async def test_it_saves_steps(self, bundled: InProcessVerifier) -> None:
        off, on = [await bundled.generate(asking(bundled, ahead(FORM, each))) for each in (False, True)]
        assert off.token_ids == on.token_ids
        assert not off.finished.speculation.draft_tokens
        assert on.finished.speculation.steps < off.finished.speculation.steps
        [drafter] = on.finished.speculation.drafters
        assert (drafter.name, drafter.accepted_tokens) == ("grammar", on.sources.count("grammar"))
        assert drafter.accepted_tokens == drafter.draft_tokens > 5

    async def test_it_goes_with_the_request(self, bundled: InProcessVerifier) -> None:
        await bundled.generate(asking(bundled, FORM))
        await bundled.until(lambda: not bundled.engine.planner.models)
        assert not bundled.engine._local._drafters
        assert not bundled.verifier.status().planner.calibrations

    async def test_without_speculation_there_is_none(self, bundled: InProcessVerifier) -> None:
        output = await bundled.plain(asking(bundled, ahead(FORM, True)))
        assert not output.finished.speculation.draft_tokens

    async def test_no_drafter_may_have_its_name(self, drafted: InProcessVerifier) -> None:
        with pytest.raises(ServiceError, match="grammar"):
            await drafted.pool.membership.attach("draft:1", "grammar")


async def test_what_the_form_forbids_is_not_verified(drafted: InProcessVerifier) -> None:
    await drafted.pool.membership.attach("draft:1", "")
    drafted.engine.drafts_awaited = True
    form = StructuredOutput(regex="[#@]{12}", jump_ahead=False)
    held = await drafted.generate(asking(drafted, form))
    free = await drafted.generate(asking(drafted, None, max_tokens=12))
    assert held.finished.speculation.draft_tokens < free.finished.speculation.draft_tokens


async def test_a_batch_gives_what_each_gives_alone(drafted: InProcessVerifier) -> None:
    forms = [FORM, None, SCHEMAS["recursion"], OTHERS["regex"][0], OTHERS["choice"][0]]
    requests = [asking(drafted, form, sampling=warm(seed), max_tokens=30) for seed, form in enumerate(forms)]
    alone = [(await drafted.plain(request)).token_ids for request in requests]
    await drafted.pool.membership.attach("draft:1", "")
    together = await asyncio.gather(*(drafted.generate(request) for request in requests))
    assert [output.token_ids for output in together] == alone


class TestItsEnd:
    async def test_max_tokens_cuts_it(self, bundled: InProcessVerifier) -> None:
        whole = await bundled.generate(asking(bundled, FORM))
        cut = await bundled.generate(asking(bundled, FORM, max_tokens=9))
        assert (cut.finished.finish_reason, cut.token_ids) == (LENGTH, whole.token_ids[:9])
        just = await bundled.generate(asking(bundled, FORM, max_tokens=len(whole.token_ids)))
        assert (just.finished.finish_reason, just.text) == (STOP, whole.text)

    async def test_a_stop_string_ends_it_before(self, bundled: InProcessVerifier) -> None:
        output = await bundled.generate(asking(bundled, FORM, stop=['"level"']))
        assert (output.finished.finish_reason, output.finished.stop) == (STOP, '"level"')
        assert output.text.startswith('{"name": ')
        assert output.text.endswith(", ")

    async def test_past_the_end_of_sequence_it_goes_on_to_max_tokens(self, bundled: InProcessVerifier) -> None:
        form = StructuredOutput(regex="[a-z ]+")
        output = await bundled.generate(asking(bundled, form, ignore_eos=True, max_tokens=30))
        assert (output.finished.finish_reason, len(output.token_ids)) == (LENGTH, 30)
        assert re.fullmatch("[a-z ]+", output.text)


async def test_what_a_form_leaves_to_others_is_told(bundled: InProcessVerifier) -> None:
    schema = {"type": "object", "properties": {"to": {"pattern": "(?<!x)y"}}, "x-guidance": {"lenient": True}}
    for _ in range(2):  # compiled, and from the cache
        output = await bundled.generate(asking(bundled, schema, max_tokens=4))
        assert list(output.started.left_out) == ["properties.to.pattern"]
    assert not (await bundled.generate(asking(bundled, FORM, max_tokens=4))).started.left_out


class TestResuming:
    async def test_the_rest_is_the_rest(self, bundled: InProcessVerifier) -> None:
        whole = await bundled.generate(asking(bundled, FORM, sampling=warm()))
        for length in (0, 1, 5, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
            request = asking(bundled, FORM, sampling=warm(), resume_token_ids=whole.token_ids[:length])
            assert (await bundled.generate(request)).token_ids == whole.token_ids[length:]

    async def test_one_that_was_complete(self, bundled: InProcessVerifier) -> None:
        whole = await bundled.generate(asking(bundled, FORM))
        for most in (160, len(whole.token_ids)):
            request = asking(bundled, FORM, resume_token_ids=whole.token_ids, max_tokens=most)
            output = await bundled.generate(request)
            assert (output.finished.finish_reason, output.token_ids) == (STOP, [])

    async def test_tokens_that_do_not_fit(self, bundled: InProcessVerifier) -> None:
        whole = await bundled.generate(asking(bundled, FORM))
        request = asking(bundled, FORM, resume_token_ids=[*whole.token_ids[:4], 17])
        assert await refusal(bundled, request) == ("resume_token_ids[4]", "INVALID_FIELD")


async def refusal(verifier: InProcessVerifier, request: Any) -> tuple[str, str]:
    """Returns the field and the reason with which a request is refused."""
    with pytest.raises(ServiceError) as caught:
        await verifier.generate(request)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    [violation] = caught.value.field_violations
    return violation.field, caught.value.reason_name


BAD: dict[str, tuple[StructuredOutput, str]] = {
    "no form": (StructuredOutput(jump_ahead=True), ""),
    "no schema": (StructuredOutput(json_schema=""), ".json_schema"),
    "a schema that is no JSON": (StructuredOutput(json_schema='{"type"'), ".json_schema"),
    "a schema that cannot be kept": (StructuredOutput(json_schema='{"not": {}}'), ".json_schema"),
    "a huge schema": (StructuredOutput(json_schema='{"enum": ["' + "x" * 300_000 + '"]}'), ".json_schema"),
    "no object": (StructuredOutput(json_object=False), ".json_object"),
    "an expression": (StructuredOutput(regex="(a"), ".regex"),
    "a grammar in Lark": (StructuredOutput(lark="start: foo"), ".lark"),
    "a grammar in EBNF": (StructuredOutput(ebnf="root ::= foo"), ".ebnf"),
    "no choice": (StructuredOutput(choice=Choices()), ".choice.texts"),
    "an empty choice": (StructuredOutput(choice=Choices(texts=["a", ""])), ".choice.texts[1]"),
    "too much choice": (StructuredOutput(choice=Choices(texts=["a"] * 4097)), ".choice.texts"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_forms_name_their_field(bundled: InProcessVerifier, name: str) -> None:
    form, field = BAD[name]
    request = asking(bundled, form)
    request.structured_output.SetInParent()
    assert await refusal(bundled, request) == (f"structured_output{field}", "INVALID_FIELD")
    assert not bundled.engine.running


SLOW_AND_LARGE = StructuredOutput(json_schema=long_names("$id"))
SLOW_AND_SMALL = StructuredOutput(json_schema=patterns())


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms get less processor time than by default, and those that take too long exceed it as well."""
    monkeypatch.setattr(grammar_trial, "MOST_SECONDS", 0.5)


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize("form", [SLOW_AND_LARGE, SLOW_AND_SMALL], ids=["large", "small"])
async def test_a_form_that_takes_too_much(bundled: InProcessVerifier, form: StructuredOutput) -> None:
    assert await refusal(bundled, asking(bundled, form)) == ("structured_output.json_schema", "INVALID_FIELD")


@pytest.mark.usefixtures("little_time")
async def test_one_that_asks_for_slow_forms_does_not_hold_up_others(
    bundled: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = bundled.verifier.reader
    monkeypatch.setattr(reader._forms._compiling, "_wait_seconds", PATIENCE)  # the machine may be busy
    known = asking(bundled, FORM)
    await reader.read(known, peer="b")
    hostile = [
        asyncio.create_task(reader.read(asking(bundled, form), peer="a"))
        for form in (SLOW_AND_LARGE, SLOW_AND_SMALL)
        for _ in range(3)
    ]
    async with asyncio.timeout(PATIENCE):
        assert (await reader.read(known, peer="b")).spec.form is not None
        assert not any(task.done() for task in hostile), "what is kept does not wait"
        assert (await reader.read(asking(bundled, SCHEMAS["recursion"]), peer="b")).spec.form is not None
        assert not all(task.done() for task in hostile), "it waits for one of them, not for all"
    for task in hostile:
        task.cancel()
    await asyncio.wait(hostile)


async def test_a_tokenizer_that_cannot_be_held_to_a_form(verifier: InProcessVerifier) -> None:
    request = order(structured_output=StructuredOutput(regex="a"))
    assert await refusal(verifier, request) == ("structured_output.regex", "INVALID_FIELD")


async def test_a_cancelled_request_leaves_nothing(bundled: InProcessVerifier) -> None:
    bundled.engine.hold(2)
    task: asyncio.Task[Output] = asyncio.create_task(bundled.generate(asking(bundled, FORM)))
    await bundled.until(lambda: bundled.engine._permits == 0)
    task.cancel()
    bundled.engine.go_on()
    await bundled.freed()
    await bundled.until(lambda: not bundled.engine._local._drafters)
