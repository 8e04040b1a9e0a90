"""Measures, by library, what constraining an output to a JSON schema costs and which schemas it handles.

    python -m benchmarks.speed.grammar_cost [--vocab 65536] [--runs 5] [--json]

The engine uses llguidance; xgrammar is measured if it is installed (it is not a dependency). There are two tokenizers:
the bundled one, of 4096 tokens, and a byte-level BPE of --vocab tokens, trained on the spot on the text of this
repository and of the standard library. For each schema a valid text is followed token by token, with a mask before each
token. The matcher is freshly compiled, so a mask's time includes work that the library defers.

A schema is handled correctly if the library accepts the whole valid text and rejects the invalid one. A library may
also refuse the schema; anything else is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.text.token_table import TokenTable
from tests.harness.checkout import ROOT

_TRAINED_ON = 16_000_000
"""Characters of text that the large tokenizer is trained on."""
_END = "<|end|>"


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, with a value that it allows and one that it does not."""

    name: str
    schema: dict[str, Any]
    valid: Any
    invalid: Any


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    } | more


_PERSON = _object({"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}})
CASES = (
    Case("object", _PERSON, {"name": "Ada Lovelace", "age": 36}, {"name": "Ada", "age": "36"}),
    Case(
        "nested",
        _object({"user": _object({"who": _PERSON, "tags": {"type": "array", "items": {"type": "string"}}})}),
        {"user": {"who": {"name": "Ada", "age": 3}, "tags": ["a", "b"]}},
        {"user": {"who": {"name": "Ada"}, "tags": []}},
    ),
    Case("any object", {"type": "object"}, {"a": [1, 2.5, None, {"b": "c d"}]}, [1]),
    Case("enum", {"enum": [f"option {number}" for number in range(100)]}, "option 73", "option 100"),
    Case("range", {"type": "integer", "minimum": -5, "maximum": 120}, 119, 121),
    Case("number range", {"type": "number", "minimum": 0, "exclusiveMaximum": 1}, 0.25, 1.5),
    Case("multipleOf", {"type": "integer", "multipleOf": 5}, 125, 126),
    Case("array bounds", {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, [1, 22], [1]),
    Case(
        "tuple",
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        ["x", 1],
        ["x", 1, 2],
    ),
    Case("pattern", {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, "AB-1234", "AB-12"),
    Case("pattern anywhere", {"type": "string", "pattern": "ab+c"}, "xxabbcyy", "xxac"),
    Case("string length", {"type": "string", "minLength": 3, "maxLength": 5}, "abcd", "ab"),
    Case("date-time", {"type": "string", "format": "date-time"}, "2024-02-29T12:30:00Z", "yesterday"),
    Case("uuid", {"type": "string", "format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123"),
    Case("email", {"type": "string", "format": "email"}, "ada@example.org", "ada"),
    Case("ipv4", {"type": "string", "format": "ipv4"}, "127.0.0.1", "127.0.0.999"),
    Case("anyOf", {"anyOf": [_PERSON, {"type": "null"}]}, None, 1),
    Case("oneOf", {"oneOf": [{"type": "string", "maxLength": 9}, {"type": "integer"}]}, 12, True),
    Case("oneOf that overlaps", {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, 1, 3),
    Case("allOf", {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 9}]}, 7, 11),
    Case(
        "recursion",
        {
            "$ref": "#/$defs/tree",
            "$defs": {"tree": _object({"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}})},
        },
        {"v": 1, "kids": [{"v": 2, "kids": []}]},
        {"v": 1, "kids": [2]},
    ),
    Case(
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
        {"n_a": 1},
        {"n_a": "1"},
    ),
    Case(
        "additionalProperties",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
        {"a": 1, "b": True},
        {"a": 1, "b": 2},
    ),
    Case("minProperties", {"type": "object", "minProperties": 1}, {"a": 1}, {}),
    Case("const", _object({"kind": {"const": "größe 漢"}}), {"kind": "größe 漢"}, {"kind": "grösse"}),
    Case("uniqueItems", {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, [1, 2], [1, 1]),
    Case("not", {"not": {"type": "string"}}, 1, "a"),
    Case("if", {"if": {"type": "string"}, "then": {"maxLength": 2}}, "ab", "abc"),
    Case(
        "wide",
        _object({f"field_{number}": {"type": "string", "maxLength": 30} for number in range(60)}),
        {f"field_{number}": f"value {number}" for number in range(60)},
        {"field_0": 1},
    ),
)


class Refused(Exception):
    """The library refused the schema."""


class Matcher(Protocol):
    """Position of one text in a schema."""

    def mask(self) -> None:
        """Computes which tokens are allowed next."""

    def take(self, token: int) -> bool:
        """Advances by a token; returns whether it was allowed."""

    def complete(self) -> bool:
        """Whether the text may end here."""


class _Guidance:
    """llguidance as the engine uses it; a mask's time is that of one row, expanded into a tensor."""

    _ROW = TreeRows([-1], [-1])

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._vocab = len(tokenizer)
        self._compiler = GrammarCompiler(lambda: TokenTable.of(tokenizer.backend_tokenizer), self._vocab)
        self._compiler.form(Grammar(FormKind.REGEX, "a"), ())  # reads the tokenizer

    def compile(self, schema: str) -> Callable[[], Matcher]:
        grammar = Grammar(FormKind.JSON_SCHEMA, schema)
        self._compiler._kept.clear()
        try:
            self._compiler.form(grammar, ())
        except GrammarError as error:
            raise Refused(str(error)) from error
        return lambda: _GuidanceMatcher(self._compiler.form(grammar, ()))


class _GuidanceMatcher:
    def __init__(self, form: Any):
        self._form = form
        self._taken = 0

    def mask(self) -> None:
        self._form._block(_Guidance._ROW)

    def take(self, token: int) -> bool:
        self._form.commit([token])
        self._taken += 1
        return len(self._form._output) == self._taken

    def complete(self) -> bool:
        return bool(self._form._matcher.is_accepting())


class _XGrammar:
    """xgrammar, with the same layout of JSON and one thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        import xgrammar

        self._library = xgrammar
        self._info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self._mask = xgrammar.allocate_token_bitmask(1, len(tokenizer))

    def compile(self, schema: str) -> Callable[[], Matcher]:
        compiler = self._library.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            compiled = compiler.compile_json_schema(schema, any_whitespace=False, separators=(", ", ": "))
        except RuntimeError as error:
            raise Refused(" ".join(str(error).split())) from error
        return lambda: _XMatcher(self._library.GrammarMatcher(compiled), self._mask)


class _XMatcher:
    def __init__(self, matcher: Any, mask: Any):
        self._matcher = matcher
        self._mask = mask

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)

    def take(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())


def follow(matcher: Matcher, tokens: Iterable[int], seconds: list[float]) -> bool:
    """Returns whether a matcher accepts a whole text; appends the time of each mask to `seconds`."""
    for token in tokens:
        started = time.perf_counter()
        matcher.mask()
        seconds.append(time.perf_counter() - started)
        if not matcher.take(token):
            return False
    return matcher.complete()


def large_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer trained on the text at hand."""
    texts: list[str] = []
    left = _TRAINED_ON
    places = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/*.py"))]
    for path in [*places, *sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))]:
        if left > 0 and "site-packages" not in path.parts:
            texts.append(path.read_text(encoding="utf-8", errors="replace")[:left])
            left -= len(texts[-1])
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=[_END], initial_alphabet=alphabet, min_frequency=1, show_progress=False
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=_END)


def measure(library: _Guidance | _XGrammar, tokenizer: PreTrainedTokenizerFast, runs: int) -> dict[str, Any]:
    """Measures the times over all schemas that the library handles correctly, and counts its verdicts on the others."""
    compiling: list[float] = []
    masks: list[float] = []
    faults: dict[str, str] = {}
    for case in CASES:
        schema = json.dumps(case.schema)
        valid, invalid = (
            tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
            for value in (case.valid, case.invalid)
        )
        try:
            for _ in range(runs):
                started = time.perf_counter()
                make = library.compile(schema)
                seconds = time.perf_counter() - started
                times: list[float] = []
                taken = follow(make(), valid, times)
                if not taken or follow(make(), invalid, []):
                    faults[case.name] = "takes an invalid value" if taken else "does not take a valid value"
                    break
                compiling.append(seconds)
                masks += times
        except Refused as refused:
            faults[case.name] = f"refused: {refused}"
    return {
        "right": len(CASES) - len(faults),
        "schemas": len(CASES),
        "compile_ms": _spread(compiling),
        "mask_ms": _spread(masks),
        "faults": faults,
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "median": 1e3 * statistics.median(ordered),
        "p99": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
        "max": 1e3 * ordered[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=65536)
    parser.add_argument("--runs", type=int, default=5)
    add_report_options(parser)
    options = parser.parse_args()
    bundled = PreTrainedTokenizerFast.from_pretrained(str(ROOT / "models" / "target"))
    libraries: list[type[_Guidance] | type[_XGrammar]] = [_Guidance]
    if importlib.util.find_spec("xgrammar"):
        libraries.append(_XGrammar)
    found: dict[str, dict[str, Any]] = {}
    for tokenizer in (bundled, large_tokenizer(options.vocab)):
        for library in libraries:
            name = f"{library.__name__.strip('_').lower()}, {len(tokenizer)} tokens"
            found[name] = measure(library(tokenizer), tokenizer, options.runs)
    save(found, options)
    if options.json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return
    for name, result in found.items():
        print(f"{name}: {result['right']} of {result['schemas']} schemas right")
        for what in ("compile_ms", "mask_ms"):
            print("  " + what + "  " + "  ".join(f"{key} {value:.3f}" for key, value in result[what].items()))
        for case, fault in result["faults"].items():
            print(f"  {case}: {fault}")


if __name__ == "__main__":
    main()
