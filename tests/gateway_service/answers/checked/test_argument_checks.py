"""Arguments of calls, checked after the fact, in a process that no schema can hold up."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from draftwire import ChatFormat
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.checked import argument_checks
from gateway_service.answers.checked.argument_checks import ArgumentChecks, tools_of
from gateway_service.answers.tool import Tool, ToolUse

Checks = ArgumentChecks


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    made = ArgumentChecks()
    yield made
    await made.close()


def plan(**schemas: Any) -> AnswerPlan:
    use = ToolUse([Tool(name, None, schema) for name, schema in schemas.items()], "required")
    return AnswerPlan(ChatFormat(tool_calls="hermes"), use, reasoning=True)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


MAIL = record(to={"type": "string", "pattern": "^(?<!x)y"}, kind={"not": {"const": 1}})
DEEP = {f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}] * 2} for level in range(40)}
HOSTILE: dict[str, tuple[Any, str]] = {
    "alternatives in alternatives": (
        {"$ref": "#/$defs/a0", "$defs": DEEP | {"a40": {"not": {}}}}, "it takes more than 0.2 s"
    ),
    "a pattern that goes back": (record(to={"pattern": "(a*)*(?=b)c"}), "a pattern takes too many steps"),
    "a pattern that is none": (record(to={"pattern": "("}), "the schema is not valid"),
    "another document": ({"$ref": "http://localhost:1/schema.json"}, "the schema is not valid"),
}  # fmt: skip


async def test_what_calls_violate_is_named(checks: Checks) -> None:
    text = (
        "Well.\n" + call("mail", '{"to": "x"}') + call("mail", '{"to": "y", "kind": 1}') + call("mail", '{"to": "y"}')
    )
    with capture_logs() as logs:
        found = await checks.violations("one", plan(mail=MAIL), [text, call("mail", "{oh}")], {"mail"})
    assert found == ["mail(properties.to.pattern)", "mail(properties.kind.not)", "mail((not JSON))"]
    assert [each["parts"] for each in logs if each["event"] == "schema violations found"] == [found]


async def test_the_log_names_violations_within_bounds(checks: Checks) -> None:
    schema = record(**{"p" * 4096: {"const": 1}})
    with capture_logs() as logs:
        found = await checks.violations(
            "one", plan(mail=schema), [call("mail", '{"%s": 2}' % ("p" * 4096)) * 40], {"mail"}
        )
    (parts,) = [each["parts"] for each in logs if each["event"] == "schema violations found"]
    assert len(found) == 40 and len(parts) == 17 and max(map(len, parts)) <= 140 and parts[-1] == "...24"


async def test_a_place_of_any_length_is_named(checks: Checks) -> None:
    schema = {"type": "object", "patternProperties": {f"^to|[{'x' * 70_000}]": {"type": "string"}}}
    (found,) = await checks.violations("one", plan(mail=schema), [call("mail", '{"to": 1}')], {"mail"})
    assert found.startswith("mail(patternProperties.^to|[xxx")


async def test_calls_of_other_tools_are_not_checked(checks: Checks) -> None:
    text = call("mail", '{"to": "x"}') + call("clock", '{"to": "x"}')
    assert await checks.violations("one", plan(mail=MAIL, clock=MAIL), [text], {"clock"}) == [
        "clock(properties.to.pattern)"
    ]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_is_given_up(checks: Checks, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "SECONDS", 0.2 if "alternatives" in name else 20.0)
    schema, reason = HOSTILE[name]
    text = call("mail", '{"to": "%s"}' % ("a" * 5000))
    with capture_logs() as logs:
        assert await checks.violations("one", plan(mail=schema), [text], {"mail"}) == []
    assert [each["reason"] for each in logs if each["event"] == "tool call arguments not checked"] == [reason]
    monkeypatch.setattr(argument_checks, "SECONDS", 20.0)
    found = await checks.violations("two", plan(mail=MAIL), [call("mail", '{"to": "x"}')], {"mail"})
    assert found == ["mail(properties.to.pattern)"], "the next check is none the worse for it"


async def test_checks_do_not_pile_up(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "_MOST_WAITING", 0)
    with capture_logs() as logs:
        assert await checks.violations("one", plan(mail=MAIL), [call("mail", '{"to": "x"}')], {"mail"}) == []
    assert [each["reason"] for each in logs] == ["too many checks wait"]


async def test_a_request_with_many_slow_calls_is_given_up_once(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' responses wait for its checks."""
    schema, reason = HOSTILE["alternatives in alternatives"]
    monkeypatch.setattr(argument_checks, "SECONDS", 0.2)
    with capture_logs() as logs:
        text = call("mail", "{}") * 100
        assert await checks.violations("one", plan(mail=schema), [text, text], {"mail"}) == []
    assert [each["reason"] for each in logs if each["event"] == "tool call arguments not checked"] == [reason]


async def test_checks_wait_only_so_long_for_those_of_others(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "TURN_SECONDS", 0.05)
    monkeypatch.setattr(argument_checks, "SECONDS", 20.0)
    asked = plan(mail=MAIL), [call("mail", '{"to": "x"}')], {"mail"}
    async with checks._turn:
        with capture_logs() as logs:
            assert await checks.violations("one", *asked) == []
    assert [each["reason"] for each in logs] == ["other checks take too long"]
    assert await checks.violations("two", *asked) == ["mail(properties.to.pattern)"]


def test_tools_are_known_by_what_was_left_out() -> None:
    assert tools_of(["mail(properties.to.pattern)", "properties.to.pattern", "clock(not)"]) == {"mail", "clock"}
