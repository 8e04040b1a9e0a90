"""Fingerprints of tokenizers: each part that determines the ids of a text changes them, and no other does."""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from draftwire_core.adapters.common.target_info import fingerprint_of
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.text.tokenizer_files import tokenizer_fingerprint
from tests.harness.models.byte_tokenizers import END, backend

Change = Callable[[dict[str, Any]], None]
"""Changes the content of a `tokenizer.json`."""


@cache
def content() -> str:
    """The content of a tokenizer's `tokenizer.json` in which no part is missing."""
    made = backend("fallback")
    made.add_special_tokens([AddedToken("<|turn|>", special=True)])
    made.add_tokens([AddedToken("<think>", special=False)])
    made.pre_tokenizer = backend("target").pre_tokenizer
    return str(made.to_str())


def of_transformers(change: Change | None = None, **options: object) -> PreTrainedTokenizerFast:
    parts = json.loads(content())
    if change is not None:
        change(parts)
        assert parts != json.loads(content())
    changed = Backend.from_str(json.dumps(parts))
    return PreTrainedTokenizerFast(tokenizer_object=changed, eos_token=END["fallback"], **options)


def fingerprint(change: Change | None = None, **options: object) -> str:
    return Tokenizer(of_transformers(change, **options)).sha256


def added(name: str, **flags: bool) -> Change:
    """Returns a change of the flags of an added token."""

    def change(parts: dict[str, Any]) -> None:
        (token,) = (each for each in parts["added_tokens"] if each["content"] == name)
        token.update(flags)

    return change


def without_an_added_token(parts: dict[str, Any]) -> None:
    parts["added_tokens"].pop()


def another_added_token(parts: dict[str, Any]) -> None:
    parts["added_tokens"][-1]["content"] = "<thought>"


def two_added_tokens_swapped(parts: dict[str, Any]) -> None:
    first, second = parts["added_tokens"][-2:]
    first["content"], second["content"] = second["content"], first["content"]


def two_ids_swapped(parts: dict[str, Any]) -> None:
    vocabulary = parts["model"]["vocab"]
    vocabulary["<0x20>"], vocabulary["<0x21>"] = vocabulary["<0x21>"], vocabulary["<0x20>"]


def another_spelling(parts: dict[str, Any]) -> None:
    vocabulary = parts["model"]["vocab"]
    vocabulary["☃"] = vocabulary.pop("🐍")


def merges_in_another_order(parts: dict[str, Any]) -> None:
    merges = parts["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def a_merge_less(parts: dict[str, Any]) -> None:
    parts["model"]["merges"].pop()


def model_option(**options: object) -> Change:
    return lambda parts: parts["model"].update(options)


def part(name: str, value: object) -> Change:
    return lambda parts: parts.update({name: value})


def another_pattern(parts: dict[str, Any]) -> None:
    parts["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\p{L}+|."}


def another_replacement(parts: dict[str, Any]) -> None:
    parts["normalizer"]["content"] = "_"


@pytest.mark.parametrize(
    "change",
    [
        without_an_added_token,
        another_added_token,
        two_added_tokens_swapped,
        added("<|turn|>", special=False),
        added("<think>", lstrip=True),
        added("<think>", rstrip=True),
        added("<think>", normalized=False),
        added("<think>", single_word=True),
        two_ids_swapped,
        another_spelling,
        merges_in_another_order,
        a_merge_less,
        model_option(byte_fallback=False),
        model_option(ignore_merges=True),
        model_option(unk_token="<0x20>"),
        another_replacement,
        part("normalizer", None),
        another_pattern,
        part("pre_tokenizer", None),
    ],
    ids=[
        "an added token less",
        "another added token",
        "ids of added tokens",
        "special",
        "lstrip",
        "rstrip",
        "normalized",
        "single_word",
        "ids",
        "spelling",
        "order of merges",
        "a merge less",
        "bytes",
        "whole words",
        "unknown token",
        "normaliser",
        "no normaliser",
        "pre-tokenizer",
        "no pre-tokenizer",
    ],
)
def test_what_determines_ids_counts(change: Change) -> None:
    assert fingerprint(change) != fingerprint()


def framed(parts: dict[str, Any]) -> None:
    """Puts a token before each text: a drafter is given ids, and encodes no text."""
    end = END["fallback"]
    (token,) = (each["id"] for each in parts["added_tokens"] if each["content"] == end)
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {end: {"id": end, "ids": [token], "tokens": [end]}},
    }


@pytest.mark.parametrize(
    "change",
    [
        framed,
        part("decoder", {"type": "Fuse"}),
        part("truncation", {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}),
        part(
            "padding",
            {
                "strategy": {"Fixed": 7},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<eos>",
            },
        ),
    ],
    ids=["what is put around a text", "decoder", "truncation", "padding"],
)
def test_what_does_not_determine_them_does_not_count(change: Change) -> None:
    assert fingerprint(change) == fingerprint()


def test_the_chat_template_does_not_count() -> None:
    assert fingerprint(chat_template="{{ messages }}") == fingerprint()


def test_the_order_in_a_file_does_not_count() -> None:
    parts = json.loads(content())
    turned = dict(reversed(parts.items()))
    turned["model"] = {**parts["model"], "vocab": dict(reversed(parts["model"]["vocab"].items()))}
    assert tokenizer_fingerprint(turned) == tokenizer_fingerprint(parts) == fingerprint()


def test_it_is_the_hash_of_the_parts_as_sorted_json() -> None:
    """Services of different builds compare it."""
    parts = json.loads(content())
    parts["model"]["vocab"]['"ü\\'] = 12345678
    kept = {key: parts[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    assert tokenizer_fingerprint(parts) == hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def test_a_host_engines_target_has_the_same() -> None:
    assert fingerprint_of(of_transformers(), "target") == fingerprint()
    assert fingerprint_of(of_transformers(without_an_added_token), "target") != fingerprint()


def test_a_tokenizer_that_cannot_be_compared_has_none() -> None:
    class Slow:
        is_fast = False

    assert fingerprint_of(Slow(), "target") == ""
    assert fingerprint_of(object(), "target") == ""  # as those of Mistral's own library
