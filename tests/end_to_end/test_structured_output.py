"""Structured output through real processes: with the SDK, the command line and drafters, and the refused forms."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from draftwire import Client, Speculation
from draftwire.errors import InvalidFieldError
from tests.harness.command import Command
from tests.harness.services.service_process import ServiceProcess

pytestmark = pytest.mark.processes

PROMPT = "# The configuration as JSON:\nconfig = "
SCHEMA = {
    "type": "object",
    "properties": {
        "host": {"type": "string", "maxLength": 12},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "level": {"enum": ["debug", "warning"]},
    },
    "required": ["host", "port", "level"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_value_whoever_drafts(client: Client, good_drafter: str, bad_drafter: str, temperature: float) -> None:
    def ask(*, jump_ahead: bool = True, speculation: Speculation | None = None) -> tuple[list[int], str]:
        made = client.generate(
            PROMPT,
            json_schema=SCHEMA,
            jump_ahead=jump_ahead,
            max_tokens=120,
            temperature=temperature,
            seed=5,
            speculation=speculation,
        )
        assert made.finish_reason == "stop"
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(made.text))
        return made.token_ids, made.text

    plain = ask(speculation=Speculation(enabled=False))
    assert ask() == ask(jump_ahead=False) == plain
    client.drafters.attach(good_drafter, name="good")
    assert ask() == ask(jump_ahead=False) == plain
    client.drafters.attach(bad_drafter, name="bad")
    client.drafters.attach("local:ngram", name="ngram")
    assert ask(speculation=Speculation(drafters=["good", "ngram"])) == plain
    assert ask(speculation=Speculation(drafter="bad")) == plain


def test_jump_ahead_is_told_as_a_drafter(client: Client) -> None:
    made = client.generate(PROMPT, json_schema=SCHEMA, max_tokens=120, temperature=0.0)
    [drafter] = made.speculation.drafters
    assert drafter.name == "grammar"
    assert drafter.accepted_tokens == drafter.draft_tokens > 0
    assert made.speculation.steps < len(made.token_ids)


def test_what_is_refused_names_its_field_and_leaves_nothing(client: Client) -> None:
    forms: dict[str, dict[str, object]] = {
        "structured_output.json_schema": {"json_schema": {"type": "no type"}},
        "structured_output.regex": {"regex": "(a"},
        "structured_output.lark": {"grammar": "start: nothing"},
        "structured_output.ebnf": {"ebnf": "root ::= nothing"},
        "structured_output.choice.texts": {"choice": []},
        "structured_output.choice.texts[1]": {"choice": ["a", ""]},
    }
    for field, form in forms.items():
        with pytest.raises(InvalidFieldError) as caught:
            client.generate(PROMPT, max_tokens=8, **form)  # type: ignore[arg-type]
        assert caught.value.fields == (field,)
    engine = client.model_info().engine
    assert (engine.running_sequences, engine.waiting_requests, engine.used_slots) == (0, 0, 0)


def test_on_the_command_line(
    verifier: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Command(monkeypatch, capsys)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    asked = ("generate", PROMPT, "--verifier", verifier.address, "--max-tokens", "120")
    of_schema = run(*asked, "--json-schema", str(schema))
    assert of_schema.code == 0, of_schema.err
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(of_schema.out))
    assert run(*asked, "--choice", "yes", "--choice", "no").out.strip() in ("yes", "no")
