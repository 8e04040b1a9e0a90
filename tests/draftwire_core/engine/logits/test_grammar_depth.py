"""The depth of forms: one beyond the bound ends only its own compilation."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_depth import MOST_LEVELS, gbnf_levels, lark_levels, schema_levels
from draftwire_core.engine.logits.longest_path import longest_path
from tests.harness import processes
from tests.harness.hostile_forms import gbnf_rules, lark_rules, long_names, patterns
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

TOKENIZER = Path(__file__).resolve().parents[4] / "models" / "target" / "tokenizer.json"
COMPILE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.text.token_table import TokenTable
from tokenizers import Tokenizer

compiler = GrammarCompiler(lambda: TokenTable.of(Tokenizer.from_file(sys.argv[1])), 4100)
for kind, text in json.load(sys.stdin):
    print("begins", flush=True)
    try:
        ThreadPoolExecutor(1).submit(compiler.form, Grammar(FormKind(kind), text), [0]).result()
    except GrammarError as error:
        print("refused:", error, flush=True)
    else:
        print("compiled", flush=True)
"""
Form = tuple[FormKind, str]


@pytest.fixture(scope="module")
def outcomes() -> dict[Form, str]:
    """What became of each form, in a separate process, which a crash ends."""
    forms = [*TOO_DEEP.values(), *GROUPS.values(), *AS_DEEP_AS_ALLOWED.values(), *TOO_MUCH.values()]
    ran = processes.run(
        [sys.executable, "-c", COMPILE, str(TOKENIZER)],
        env=os.environ | processes.ENVIRONMENT,
        input=json.dumps([(kind.value, text) for kind, text in forms]),
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )
    said = [each.strip() for each in ran.stdout.split("begins\n")[1:]]
    if ran.returncode != 0:
        said[-1] = f"crashed: {ran.returncode} {ran.stderr[-2000:]}"
    said += ["not tried, since the process had crashed"] * (len(forms) - len(said))
    return dict(zip(forms, said, strict=True))


def chain(count: int, link: Callable[[dict[str, Any]], Any]) -> str:
    definitions: dict[str, Any] = {f"a{n}": link({"$ref": f"#/$defs/a{n + 1}"}) for n in range(count)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": definitions | {f"a{count}": {"type": "string"}}})


TOO_DEEP: dict[str, Form] = {
    "references": (FormKind.JSON_SCHEMA, chain(3000, lambda ref: ref)),
    "arrays of references": (FormKind.JSON_SCHEMA, chain(3000, lambda ref: {"type": "array", "items": ref})),
    "anyOf with references": (FormKind.JSON_SCHEMA, chain(3000, lambda ref: {"anyOf": [ref, {"type": "null"}]})),
    "Lark rules": (FormKind.LARK, lark_rules(3000, "{name}: {next}")),
    "Lark terminals": (FormKind.LARK, lark_rules(6000, "{name}: {next}", "T")),
    "Lark groups": (FormKind.LARK, lark_rules(2000, '{name}: ("x" ({next} | /b/))? "y"')),
    "a schema in a grammar": (FormKind.LARK, f"start: %json {chain(3000, lambda ref: ref)}"),
    "GBNF rules": (FormKind.EBNF, gbnf_rules(6000)),
}


@pytest.mark.parametrize("name", TOO_DEEP)
def test_a_chain_that_is_too_long_is_refused(name: str, outcomes: dict[Form, str]) -> None:
    said = outcomes[TOO_DEEP[name]]
    assert said.startswith("refused: has references and groups nested ")
    assert said.endswith(f" levels deep, at most {MOST_LEVELS} are allowed")


LETTER = '"a"'


def groups(letter: str) -> str:
    return "(" * 30_000 + letter + ")" * 30_000


GROUPS: dict[str, Form] = {
    "expressions": (FormKind.REGEX, groups("a")),
    "Lark": (FormKind.LARK, f"start: {groups(LETTER)}"),
    "GBNF": (FormKind.EBNF, f"root ::= {groups(LETTER)}"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_are_too_deep_are_refused(name: str, outcomes: dict[Form, str]) -> None:
    said = outcomes[GROUPS[name]]
    assert said.startswith("refused:")
    assert "crashes" not in said, "it is refused by its depth"


AS_DEEP_AS_ALLOWED: dict[str, Form] = {
    "references": (FormKind.JSON_SCHEMA, chain(MOST_LEVELS - 10, lambda ref: ref)),
    "arrays": (FormKind.JSON_SCHEMA, chain(MOST_LEVELS // 2 - 5, lambda ref: {"type": "array", "prefixItems": [ref]})),
    "objects": (FormKind.JSON_SCHEMA, chain(MOST_LEVELS // 3 - 5, lambda ref: {"properties": {"p": ref}})),
    "rules": (FormKind.LARK, lark_rules(MOST_LEVELS - 10, "{name}: {next}")),
    "groups": (FormKind.LARK, lark_rules(MOST_LEVELS // 3 - 5, '{name}: ("x" ({next} | /b/))? "y"', "T")),
}


@pytest.mark.parametrize("name", AS_DEEP_AS_ALLOWED)
def test_what_the_bound_allows_compiles(name: str, outcomes: dict[Form, str]) -> None:
    assert outcomes[AS_DEEP_AS_ALLOWED[name]] == "compiled"


TOO_MUCH: dict[str, Form] = {
    "patterns": (FormKind.JSON_SCHEMA, patterns()),
    "names": (FormKind.JSON_SCHEMA, long_names("$id")),
    "references by name": (FormKind.JSON_SCHEMA, long_names("$ref")),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_time_and_memory_without_end_are_refused(name: str, outcomes: dict[Form, str]) -> None:
    said = outcomes[TOO_MUCH[name]]
    assert "seconds to compile" in said or "MiB of memory" in said


class TestSchemas:
    def test_nesting_and_references_add_up(self) -> None:
        assert schema_levels({}) == schema_levels(True) == 1
        assert schema_levels({"items": {"items": {}}}) == 3
        lengths = [schema_levels(json.loads(chain(count, lambda ref: {"items": ref}))) for count in (10, 20, 30)]
        assert [later - before for before, later in pairwise(lengths)] == [20, 20]

    def test_a_circle_counts_each_of_its_members_once(self) -> None:
        around = {f"a{n}": {"items": {"$ref": f"#/$defs/a{(n + 1) % 50}"}} for n in range(50)}
        assert 100 <= schema_levels({"$ref": "#/$defs/a0", "$defs": around}) <= 110
        assert schema_levels({"$ref": "#"}) <= 5

    def test_one_definition_with_many_spellings_counts_with_each(self) -> None:
        escaped = {f"p{n}": {"$ref": "#/%24defs/" + "%61" * n + "a" * (50 - n)} for n in range(50)}
        schema = {"$ref": "#/$defs/" + "a" * 50, "$defs": {"a" * 50: {"properties": escaped}}}
        assert schema_levels(schema) >= 150

    @pytest.mark.parametrize(
        "reference", ["#/$defs/a~1b/items", "#/%24defs/a~1b/items", "#there", "other.json#/items", "#/$defs/c/anyOf/1"]
    )
    def test_references_are_followed(self, reference: str) -> None:
        deep: dict[str, Any] = {}
        for _ in range(40):
            deep = {"items": deep}
        there = {"items": deep | {"$anchor": "there"}}
        definitions = {
            "a/b": there,
            "b": {"$id": "other.json", "items": deep},
            "c": {"anyOf": [{}, deep]},
        }
        # The document itself has a depth; the referenced part adds to it.
        plain = schema_levels({"$defs": definitions})
        assert schema_levels({"$defs": definitions, "$ref": reference}) >= plain + 40

    def test_a_word_that_is_no_keyword_changes_no_address(self) -> None:
        named = [{"id": f"y{n}", "items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(50)]
        definitions = {f"a{n}": each for n, each in enumerate(named)} | {"a50": {}}
        assert schema_levels({"$ref": "#/$defs/a0", "$defs": definitions}) >= 100

    def test_what_leads_nowhere_counts_for_nothing(self) -> None:
        for reference in ("#/$defs/none", "#none", "https://example.org/a.json", "http://[", "#/enum/x", ""):
            assert schema_levels({"$ref": reference, "enum": [[[]]]}) <= 4

    def test_two_hundred_definitions_that_know_one_another(self) -> None:
        def definition(number: int) -> Any:
            names = [(number * 7 + step) % 200 for step in range(5)]
            return {"type": "object", "properties": {f"p{n}": {"items": {"$ref": f"#/$defs/d{n}"}} for n in names}}

        deep: dict[str, Any] = {"type": "string"}
        for _ in range(30):
            deep = {"type": "array", "items": deep}
        definitions = {f"d{n}": definition(n) for n in range(200)} | {"d0": deep}
        assert schema_levels({"$ref": "#/$defs/d1", "$defs": definitions}) < MOST_LEVELS


class TestGrammars:
    def test_rules_one_below_the_other_are_no_chain(self) -> None:
        flat = "\n".join(f'r{n}: "a:" | other ("c" | /d\\/e:/)\n  | r{n} "x" // f: g' for n in range(3000))
        assert lark_levels(flat + "\nstart: r1") < 10
        assert gbnf_levels("\n".join(f'r{n} ::= "a" | other ("c" | [)(d])' for n in range(3000)) + "\nroot ::= r1") < 10

    @pytest.mark.parametrize(
        "line",
        ["{name}: {next}", "?{name}.5: {next}", '{name}[capture, stop="a: b"]: "c" {next}', "\t!{name} :\n {next}"],
    )
    def test_heads_of_lark_rules(self, line: str) -> None:
        assert 100 <= lark_levels(lark_rules(100, line)) <= 210

    def test_groups_count_in_each_rule(self) -> None:
        assert 300 <= lark_levels(lark_rules(100, '{name}: ("x" [{next} | /b/])? "y"')) <= 310

    def test_a_circle_of_rules(self) -> None:
        assert lark_levels("start: start start | a\na: start") <= 5
        assert gbnf_levels("root ::= root root | a\na ::= root") <= 5

    def test_gbnf_heads(self) -> None:
        text = "root ::= a-0\n" + "".join(f'a-{n}   ::=\n  "x" # no ::= here\n a-{n + 1}\n' for n in range(100))
        assert 100 <= gbnf_levels(text) <= 105

    def test_schemas_in_a_grammar_count(self) -> None:
        assert lark_levels(f"start: a\na: %json {chain(300, lambda ref: ref)}\nb: a") >= 300
        with pytest.raises(GrammarError, match="contains JSON that cannot be read"):
            Grammar(FormKind.LARK, f"start: a %json 1{'0' * 5000} b\nb: b").check_depth()
        assert lark_levels("start: " + "%lark { start: " * 50 + '"a"' + " }" * 50) >= 50


@pytest.mark.parametrize("kind", [FormKind.JSON_SCHEMA, FormKind.LARK, FormKind.EBNF, FormKind.REGEX, FormKind.CHOICE])
def test_the_bound_itself_takes_any_depth(kind: FormKind) -> None:
    texts = [
        "[" * 100_000,
        '{"a":' * 50_000,
        "(" * 100_000,
        "%json [" * 30_000,
        '\\"' * 100_000,
        "/" * 99_999,
        "start: %json {" * 9,
    ]
    for text in texts:
        with suppress(GrammarError):
            Grammar(kind, text).check_depth()


def test_paths() -> None:
    assert longest_path([], []) == 0
    assert longest_path([[1, 2], [3], [3], []], [1, 5, 2, 1]) == 7
    assert longest_path([[1], [2], [0, 3], []], [1, 2, 3, 4]) == 10
    assert longest_path([[0]], [3]) == 3
    count = 50_000
    assert longest_path([[n + 1] for n in range(count)] + [[]], [1] * (count + 1)) == count + 1
