"""The built-in prompts are many, short and different; a file's prompts are texts or token ids."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.texts import prompts as module
from draftwire_core.training.learning.texts.prompts import built_in_prompts, prompts_of
from tests.harness.checkout import MODELS

GROUPS = tomllib.loads(Path(module.__file__).with_name("prompts.toml").read_text(encoding="utf-8"))["group"]


def test_there_are_two_thousand_different_ones() -> None:
    prompts = built_in_prompts()
    assert len(prompts) == len({" ".join(prompt.split()) for prompt in prompts}) == 2000
    assert prompts == built_in_prompts.__wrapped__(), "the same on every machine"
    for name in ("subject", *(name for group in GROUPS for name in group.get("words", {}))):
        assert not [prompt for prompt in prompts if f"{{{name}}}" in prompt]


def test_kinds_and_languages() -> None:
    kinds, languages = Counter[str](), Counter[str]()
    for group in GROUPS:
        assert group["rounds"] <= len(group["templates"]), "no subject comes with a template twice"
        assert len(set(group["subjects"])) == len(group["subjects"])
        kinds[group["kind"]] += group["rounds"] * len(group["subjects"])
        languages[group["language"]] += group["rounds"] * len(group["subjects"])
    assert len(kinds) == 12 and min(kinds.values()) >= 120
    assert languages.keys() == {"en", "de", "fr", "es", "zh"}
    assert min(languages.values()) >= 100 and languages["en"] > 1400


def test_they_are_short() -> None:
    tokenizer = Tokenizer.load(str(MODELS / "target"))  # of two thousand tokens: others need fewer
    assert max(len(tokenizer.encode(prompt)) for prompt in built_in_prompts()) < 120


def test_prompts_of_a_file(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo words\n")
    lines.write_text('{"prompt": "one"}\n{"text": "two"}\n{"token_ids": [3, 4]}\n')
    assert prompts_of(plain) == ["one", "two words"]
    assert prompts_of(lines) == ["one", "two", [3, 4]]


@pytest.mark.parametrize("line", ["{", '{"id": 3}', '{"token_ids": ["a"]}', '{"token_ids": 3}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "one"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"--learn-prompts: .*a\.jsonl, line 2: "):
        prompts_of(path)
