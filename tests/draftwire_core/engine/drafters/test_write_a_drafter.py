"""docs/write-a-drafter.md: the page's code, run in order, adds a method that drafts and changes no byte."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from draftwire_core.engine.loading.methods import METHODS

ROOT = Path(__file__).resolve().parents[4]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_adds_a_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("bigram")
    monkeypatch.setitem(sys.modules, "bigram", module)
    monkeypatch.setitem(METHODS, "bigram", METHODS["ngram"])  # restores the entry that the page replaces
    blocks = BLOCK.findall((ROOT / "docs/write-a-drafter.md").read_text(encoding="utf-8"))
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block.replace('"models/', f'"{ROOT}/models/'), "the page", "exec"), module.__dict__)
    assert METHODS["bigram"].options is module.__dict__["BigramOptions"]
    printed = re.findall(r"^(\d+) of (\d+) draft tokens accepted$", capsys.readouterr().out, re.MULTILINE)
    assert len(printed) == 2  # greedy and sampled; the page itself compares the texts
    assert all(0 < int(accepted) <= int(drafted) for accepted, drafted in printed)
    draft_of = module.__dict__["BigramDrafter"](module.__dict__["BigramOptions"](depth=2))
    spec = module.__dict__["DraftSpec"]([5, 6, 7, 5], module.__dict__["SamplingParams"](), 8, 20)
    draft_of.open(1, spec)
    assert draft_of.grow().proposals[1].token_ids == [6, 7]
