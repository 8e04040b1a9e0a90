"""Tokens that a grammar allows after each path of a tree, its end, and invalid forms; with the bundled tokenizer."""

import json
import math
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLParserLimits

from draftwire_core.engine.logits import grammar_compiler, grammar_form, grammar_library
from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.logits.grammar_form import GrammarForm, TokenMisfitError
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.logits.output_form import allowed_nodes
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.tree.token_tree import TokenTree

pytestmark = pytest.mark.processes

MODEL = str(Path(__file__).resolve().parents[4] / "models" / "target")
EOS = 0
PADDED = 4100
"""Vocabulary size of the logits; the bundled tokenizer has 4096 tokens."""
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "größe": {"enum": ["漢字", "漢"]}},
        "required": ["name", "größe"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.token_table, PADDED)


Encode = Any


@pytest.fixture
def encode(tokenizer: Tokenizer) -> Encode:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def allowed(form: GrammarForm, rows: TreeRows) -> list[set[int]]:
    logits = torch.zeros(len(rows), PADDED)
    form.prepare(rows)
    form.edit(logits, rows)
    return [set(torch.nonzero(row > -math.inf).flatten().tolist()) for row in logits]


def next_tokens(form: GrammarForm) -> set[int]:
    return allowed(form, TreeRows([-1], [-1]))[0]


FORMS = {
    "json": Grammar(FormKind.JSON_SCHEMA, PERSON),
    "any object": Grammar(FormKind.JSON_SCHEMA, '{"type": "object"}'),
    "regex": Grammar(FormKind.REGEX, r"[a-z]+@[a-z]+\.(com|co|org)"),
    "lark": Grammar(FormKind.LARK, 'start: "hello" (" world" | " wor" "d"+) /[0-9]{2,4}/'),
    "ebnf": Grammar(FormKind.EBNF, 'root ::= item ("," item)* ";"\nitem ::= [a-z]+ | "日本"'),
    "choice": Grammar(FormKind.CHOICE, json.dumps(["yes", "yesterday", "no\nway", "né 漢"], ensure_ascii=False)),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_row_depends_on_its_own_path_alone(compiler: GrammarCompiler, name: str) -> None:
    draw = random.Random(name)
    for _ in range(12):
        form = compiler.form(FORMS[name], [EOS])
        committed: list[int] = []
        for _ in range(draw.randrange(6)):
            choices = sorted(next_tokens(form) - {EOS})
            if not choices or form.ended:
                break
            committed.append(draw.choice(choices))
            form.commit(committed[-1:])
        if form.ended:
            continue
        rows = TreeRows([-1], [-1])
        for row in range(1, 12):
            parent = draw.randrange(row)
            alone = compiler.form(FORMS[name], [EOS])
            alone.commit([*committed, *rows.path(parent)])
            choices = sorted(next_tokens(alone) - {EOS})
            token = draw.choice(choices) if choices and draw.random() < 0.8 else draw.randrange(PADDED)
            rows.parents.append(parent)
            rows.tokens.append(token)
        together = allowed(form, rows)
        for row in range(len(rows)):
            path = rows.path(row)
            alone = compiler.form(FORMS[name], [EOS])
            alone.commit([*committed, *path])
            if len(alone._output) == len(committed) + len(path) and not alone.ended:
                assert together[row] == next_tokens(alone), path
        # Reading the tree has not changed the form.
        assert together[0] == next_tokens(form)


def test_an_end_that_the_target_lacks_is_left_out(compiler: GrammarCompiler, encode: Encode) -> None:
    form = compiler.form(Grammar(FormKind.REGEX, "a+"), [EOS, PADDED])
    form.commit(encode("a"))
    assert EOS in next_tokens(form)


def test_what_no_token_has_is_never_allowed(compiler: GrammarCompiler) -> None:
    form = compiler.form(Grammar(FormKind.REGEX, "(?s:.)*"), [])
    tokens = next_tokens(form)
    assert max(tokens) < 4096
    assert EOS not in tokens
    assert len(tokens) > 4000
    assert not form.allows([4096])  # the grammar library's own end token
    assert not form.allows([4099])
    assert form.ends_after([4096]) is None
    form.commit([4097])
    assert next_tokens(form) == tokens


class TestTheEnd:
    def test_it_comes_where_nothing_may_follow(self, compiler: GrammarCompiler, encode: Encode) -> None:
        for ends in ([EOS], []):
            form = compiler.form(FORMS["json"], ends)
            tokens = encode('{"name": "Ada", "größe": "漢字"}')
            beyond = [*tokens, 17, 18]
            assert form.ends_after(beyond) == len(tokens)
            assert form.ends_after(tokens[:-1]) is None
            form.commit(tokens[:4])
            assert form.ends_after(beyond[4:]) == len(tokens) - 4
            assert not form.ended
            form.commit(beyond[4:])
            assert form.ended

    def test_a_complete_form_that_may_go_on_allows_the_targets_end(
        self, compiler: GrammarCompiler, encode: Encode
    ) -> None:
        grammar = Grammar(FormKind.REGEX, "a+b?")
        form, endless = compiler.form(grammar, [EOS]), compiler.form(grammar, [])
        assert EOS not in next_tokens(form)
        for each in (form, endless):
            each.commit(encode("a"))
            assert not each.ended
        assert EOS in next_tokens(form)
        assert next_tokens(endless) == next_tokens(form) - {EOS}
        assert endless.ends_after(encode("b")) == 1
        assert endless.ends_after([EOS]) is None

    def test_a_choice_that_begins_another(self, compiler: GrammarCompiler, encode: Encode) -> None:
        form = compiler.form(FORMS["choice"], [EOS])
        form.commit(encode("yes"))
        assert EOS in next_tokens(form)
        assert not form.ended

    def test_rows_behind_it_are_left_alone(self, compiler: GrammarCompiler, encode: Encode) -> None:
        form = compiler.form(Grammar(FormKind.CHOICE, '["a"]'), [])
        assert allowed(form, TreeRows([-1, 0, 1], [-1, encode("a")[0], 5]))[1:] == [set(range(PADDED))] * 2


class TestResuming:
    def test_it_goes_on_as_if_nothing_had_been(self, compiler: GrammarCompiler, encode: Encode) -> None:
        tokens = encode('{"name": "Ada", "größe": "漢字"}')
        whole = compiler.form(FORMS["json"], [EOS])
        for index, token in enumerate(tokens):
            form = compiler.form(FORMS["json"], [EOS])
            form.resume(tokens[:index])
            assert next_tokens(form) == next_tokens(whole)
            whole.commit([token])

    def test_tokens_that_do_not_fit(self, compiler: GrammarCompiler, encode: Encode) -> None:
        for tokens in (encode('{"name": 1'), [*encode('{"name"'), EOS], [PADDED - 1]):
            with pytest.raises(TokenMisfitError) as caught:
                compiler.form(FORMS["json"], [EOS]).resume(tokens)
            assert caught.value.index == len(tokens) - 1

    def test_the_targets_end_where_it_may_come(self, compiler: GrammarCompiler, encode: Encode) -> None:
        grammar = Grammar(FormKind.REGEX, "a+")
        compiler.form(grammar, [EOS]).resume([*encode("a"), EOS])
        with pytest.raises(TokenMisfitError):
            compiler.form(grammar, []).resume([*encode("a"), EOS])


def test_characters_split_over_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer, encode: Encode) -> None:
    form = compiler.form(Grammar(FormKind.CHOICE, '["龘"]'), [])
    tokens: list[int] = []
    while not form.ended:
        tokens.append(min(next_tokens(form)))
        form.commit(tokens[-1:])
    assert len(tokens) > 1
    assert tokenizer.decode(tokens) == "龘"


def test_forced_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer, encode: Encode) -> None:
    form = compiler.form(FORMS["json"], [EOS])
    assert tokenizer.decode(form.forced()) == '{"name":'
    form.commit(encode('{"name": "'))
    assert form.forced() == []
    last = compiler.form(Grammar(FormKind.CHOICE, '["abc"]'), [EOS])
    assert tokenizer.decode(last.forced()) == "abc"  # the end is no token


def test_nodes_that_may_come(compiler: GrammarCompiler, encode: Encode) -> None:
    form = compiler.form(FORMS["regex"], [EOS])
    tree = TokenTree(1, 3)
    good, bad = encode("ab")[0], encode("!")[0]
    first, _ = tree.add(tree.root, good)
    wrong, _ = tree.add(first, bad)
    padded, _ = tree.add(first, 4096)
    allows = allowed_nodes(form, tree)
    assert [allows(node) for node in (first, wrong, padded)] == [True, False, False]
    form.commit([good])
    tree.commit([good])
    assert [node.allowed for node in (wrong, padded)] == [False, False]


NOT_A_FORM: dict[str, tuple[FormKind, str, str]] = {
    "no JSON": (FormKind.JSON_SCHEMA, '{"type":', "is not JSON"),
    "nested without end": (FormKind.JSON_SCHEMA, "[" * 100_000, "is not JSON"),
    "nested deeply": (FormKind.JSON_SCHEMA, '{"items":' * 900 + "{}" + "}" * 900, "nested too deeply"),
    "a list": (FormKind.JSON_SCHEMA, "[]", "is not a JSON object"),
    "unknown type": (FormKind.JSON_SCHEMA, '{"type": "strin"}', "strin"),
    "a keyword that cannot be kept": (FormKind.JSON_SCHEMA, '{"not": {}}', "not"),
    "nothing satisfies it": (FormKind.JSON_SCHEMA, '{"type": "integer", "minimum": 2, "maximum": 1}', "minimum"),
    "a circle of references": (FormKind.JSON_SCHEMA, '{"$ref": "#"}', ""),
    "a reference to nothing": (FormKind.JSON_SCHEMA, '{"$ref": "#/$defs/a"}', ""),
    "a reference elsewhere": (FormKind.JSON_SCHEMA, '{"$ref": "https://example.org/a.json"}', ""),
    "unclosed": (FormKind.REGEX, "(a", "unclosed group"),
    "look-ahead": (FormKind.REGEX, "(?=a)b", "look-around"),
    "only the empty text": (FormKind.REGEX, "$", "no text"),
    "unknown rule": (FormKind.LARK, "start: foo", "foo"),
    "no start": (FormKind.LARK, 'begin: "a"', "start"),
    "no root": (FormKind.EBNF, 'a ::= "b"', "root"),
    "unclosed literal": (FormKind.EBNF, 'root ::= "b', ""),
    "nested brackets": (FormKind.EBNF, "root ::= " + "(" * 50_000, ""),
}


@pytest.mark.parametrize("name", NOT_A_FORM)
def test_what_is_no_form(compiler: GrammarCompiler, name: str) -> None:
    kind, text, word = NOT_A_FORM[name]
    with pytest.raises(GrammarError) as caught:
        compiler.form(Grammar(kind, text), [EOS])
    assert word in str(caught.value)
    assert 0 < len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


HOSTILE: dict[str, tuple[FormKind, str, str]] = {
    "exponential": (FormKind.REGEX, "(a|aa)*" * 30 + "c", "a"),
    "states without end": (FormKind.REGEX, "(?s:.)*a(?s:.){200}c", "ab"),
    "repetitions of repetitions": (FormKind.REGEX, "(((a{0,1000}){0,1000}){0,1000}b{1000}){1000}", "ab"),
    "ambiguous": (FormKind.LARK, 'start: start start | "a" | start "a" start start', "a"),
    "no end": (
        FormKind.JSON_SCHEMA,
        '{"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"const": 1}]}}, "required": ["a"]}',
        "",
    ),
    "repeated": (FormKind.JSON_SCHEMA, '{"type": "array", "items": {"maxLength": 99}, "minItems": 1000000}', ""),
    "many names": (
        FormKind.JSON_SCHEMA,
        json.dumps({"type": "object", "properties": {f"p{number}": {} for number in range(4000)}}),
        "",
    ),
    "references that double": (
        FormKind.JSON_SCHEMA,
        json.dumps(
            {"$ref": "#/$defs/a0", "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(24)}
             | {"a24": {"type": "string"}}}
        ),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_form_takes_bounded_time(compiler: GrammarCompiler, encode: Encode, name: str) -> None:
    kind, text, letters = HOSTILE[name]
    started = time.process_time()
    form = compiler.form(Grammar(kind, text), [EOS])
    assert time.process_time() - started < 15
    draw = random.Random(name)
    longest = 0.0
    for _ in range(300):
        started = time.process_time()
        choices = next_tokens(form)
        longest = max(longest, time.process_time() - started)
        if not choices:
            break  # a limit was reached: the request ends as if nothing were allowed
        form.commit(encode(draw.choice(letters)) if letters else [min(choices)])
    assert longest < 1.5


def test_a_limit_that_is_reached_in_a_tree_is_forgotten(compiler: GrammarCompiler, encode: Encode) -> None:
    grammar = Grammar(FormKind.LARK, HOSTILE["ambiguous"][1])
    form = compiler.form(grammar, [EOS])
    [token] = encode("a")
    depth = 250
    rows = TreeRows([-1, *range(depth)], [-1, *[token] * depth])
    together = allowed(form, rows)
    assert token in together[0]
    assert together[-1] == set()
    assert token in next_tokens(form)
    form.commit([token])
    assert token in next_tokens(form)


def test_a_form_may_name_a_token_that_ends_the_output(compiler: GrammarCompiler, encode: Encode) -> None:
    form = compiler.form(Grammar(FormKind.LARK, 'start: "ab" (<|endoftext|> | "c" <|endoftext|>)'), [EOS])
    form.commit(encode("ab"))
    assert next_tokens(form) == {EOS, *encode("c")}
    form.commit(encode("c"))
    assert next_tokens(form) == {EOS} and form.ends_after([EOS]) == 1


def test_choices_by_the_thousand(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    texts = [f"choice {number * 7919 % 4096} é" for number in range(4096)]
    form = compiler.form(Grammar(FormKind.CHOICE, json.dumps(texts, ensure_ascii=False)), [])
    draw = random.Random(1)
    tokens: list[int] = []
    while not form.ended:
        tokens.append(draw.choice(sorted(next_tokens(form))))
        form.commit(tokens[-1:])
    assert tokenizer.decode(tokens) in texts


def test_the_forms_that_are_kept_are_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_KEPT", 3)
    monkeypatch.setattr(grammar_compiler, "_KEPT_TEXT", 100)
    compiler = GrammarCompiler(tokenizer.token_table, PADDED)
    for letter in "abcabcd":
        compiler.form(Grammar(FormKind.REGEX, letter), [])
    assert [each.text for each in compiler._kept] == ["b", "c", "d"]
    compiler.form(Grammar(FormKind.REGEX, "e" * 99), [])
    assert [len(each.text) for each in compiler._kept] == [1, 99]


def test_sequences_of_one_form_do_not_know_each_other(compiler: GrammarCompiler, encode: Encode) -> None:
    one, two = (compiler.form(FORMS["json"], [EOS]) for _ in range(2))
    before = next_tokens(two)
    one.commit(encode('{"name": "'))
    assert next_tokens(two) == before
    with ThreadPoolExecutor(2) as threads:
        walks = [threads.submit(walk, compiler, seed) for seed in (1, 2, 1, 2)]
        first, second, again, also = (each.result() for each in walks)
    assert (first, second) == (again, also)


def walk(compiler: GrammarCompiler, seed: int) -> list[int]:
    form = compiler.form(FORMS["any object"], [EOS])
    draw = random.Random(seed)
    tokens: list[int] = []
    while not form.ended and len(tokens) < 30:
        tokens.append(draw.choice(sorted(next_tokens(form) - {EOS})))
        form.commit(tokens[-1:])
    return tokens


@pytest.mark.parametrize(
    ("regex", "text"), [("^ab$", "ab"), (r"a\$", "a$"), (r"a\\$", "a\\"), ("a|b", "b"), (r"^\^", "^"), ("^(a|b)$", "a")]
)
def test_anchors_around_an_expression(compiler: GrammarCompiler, encode: Encode, regex: str, text: str) -> None:
    form = compiler.form(Grammar(FormKind.REGEX, regex), [])
    tokens = encode(text)
    assert form.ends_after(tokens) == len(tokens)


def test_a_limit_that_is_reached_by_the_output_leaves_nothing(compiler: GrammarCompiler, encode: Encode) -> None:
    form = compiler.form(Grammar(FormKind.LARK, HOSTILE["ambiguous"][1]), [EOS])
    [token] = encode("a")
    for _ in range(300):
        assert form.ends_after([token]) is None
        form.commit([token])
    assert next_tokens(form) == set()
    assert next_tokens(form) == set()
    assert form.forced() == []
    assert not form.allows([token])


def test_limits_that_others_have_used_up(tokenizer: Tokenizer, encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_library, "LIMITS", LLParserLimits(max_lexer_states=5000))
    compiler = GrammarCompiler(tokenizer.token_table, PADDED)
    grammar = Grammar(*HOSTILE["states without end"][:2])
    assert compiler.kept_form(grammar, [EOS]) is None
    first, second, third = (compiler.form(grammar, [EOS]) for _ in range(3))
    assert compiler.kept_form(grammar, [EOS]) is not None
    second.commit(encode("ab"))
    draw = random.Random(1)
    alone = GrammarCompiler(tokenizer.token_table, PADDED).form(grammar, [EOS])
    while not first._matcher.is_error():
        first.commit(encode(draw.choice("abcdefgh ")))
        first._matcher.compute_bitmask()
    assert third._matcher.deep_copy().try_consume_tokens(encode("ab")) < 1 or grammar_compiler._used_up(third._matcher)
    alone.commit(encode("ab"))
    assert next_tokens(second) == next_tokens(alone)
    assert third.ends_after(encode("ab")) is None
    third.commit(encode("ab"))
    assert next_tokens(third) == next_tokens(alone)
    assert next_tokens(first)
    assert compiler.kept_form(grammar, [EOS]) is None, "it has to be compiled again"
    fourth = compiler.form(grammar, [EOS])
    fourth.commit(encode("ab"))
    assert next_tokens(fourth) == next_tokens(alone)


def test_masks_of_another_thread_are_the_same(
    compiler: GrammarCompiler, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = TreeRows([-1, 0, 1, 0], [-1, *encode('{"name')[:2], encode("x")[0]])
    here = compiler.form(FORMS["json"], [EOS])
    expected = allowed(here, rows)
    monkeypatch.setattr(grammar_form, "_WORTH_A_THREAD", 0.0)
    there = compiler.form(FORMS["json"], [EOS])
    assert allowed(there, rows) == expected  # the first masks are made in this thread, to time them
    there.prepare(rows)
    assert isinstance(there._blocked, Future)
    assert allowed(there, rows) == expected
