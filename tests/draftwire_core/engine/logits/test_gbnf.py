"""Grammars in GBNF, as llama.cpp reads them."""

from pathlib import Path

import pytest

from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.engine.written_forms import Writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(Tokenizer.load(str(Path(__file__).resolve().parents[4] / "models" / "target")))


@pytest.mark.parametrize(
    ("grammar", "allowed", "other"),
    [
        (r"[^\u0000-\u001F]+", "aA01é", "\x1f\n\0"),
        (r'"\u00e9"', "é", "e"),
        (r'"\u0009"', "\t", "9"),
        (r"[\u005d\u005c\u002d\u005e]", "]\\-^", "ab"),
        (r'"\u0022" | "\u005c"', '"\\', "2"),
        (r"[\U0001F600-\U0001F602]", "😁", "a"),
        (r"[\u00e0-\u00ff\x41]", "éA", "ea"),
        (r"[\u4e00-\u9fff]", "漢", "a"),
        (r"[+\-*/^\.]", "+-*/^.", "\\,"),
        (r"[\b\f\v\0]", "\b\f\v\0", "bfv0"),
        (r'. ("." | [.])?', "a.\n\r\0é\U0001f642", ""),
        (r'"." | [.]', ".", "a\n"),
    ],
)
def test_escaped_code_points(writer: Writer, grammar: str, allowed: str, other: str) -> None:
    form = Grammar(FormKind.EBNF, f"root ::= {grammar}")
    assert [letter for letter in allowed if not writer.allows(form, letter)] == []
    assert [letter for letter in other if writer.allows(form, letter)] == []


def test_an_escaped_backslash_begins_no_code_point(writer: Writer) -> None:
    assert writer.allows(Grammar(FormKind.EBNF, r'root ::= "\\u00e9"'), r"\u00e9")


@pytest.mark.parametrize("escape", [r"\ud800", r"\U00110000"])
def test_code_points_that_are_no_characters(writer: Writer, escape: str) -> None:
    with pytest.raises(GrammarError, match="is not a character"):
        writer.compiled(Grammar(FormKind.EBNF, f'root ::= "{escape}"'))


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"\n  | b # one\n  # "|"\n\n  | [|\\]#] # [\n\nb ::= "c"\n',
        'root ::= ("a"\n  | b\n  | [|\\]#])\nb ::=\n  "c"\n',
        'root ::= "a" | b |\n  [|\\]#]\r\nb ::= "c"',
    ],
)
def test_alternatives_on_lines_of_their_own(writer: Writer, grammar: str) -> None:
    """As xgrammar's EBNF has them, and llama.cpp in parentheses or after the line."""
    form = Grammar(FormKind.EBNF, grammar)
    assert [letter for letter in "ac|]#b\n" if writer.allows(form, letter)] == list("ac|]#")
