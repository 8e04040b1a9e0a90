"""The prompts of a check. They are built in, so that a certificate can be repeated anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwire_tools.bench.prompt import read_prompts

_CODE = '''def read_config(path):
    """Read a configuration file and return its sections as a dictionary."""
    sections = {}
    with open(path) as file:
        for line in file:
'''
_EDIT = """# Rename the variable total to count.
def add_all(values):
    total = 0
    for value in values:
        total = total + value
    return total


def add_all(values):
"""
_TEXT = """The lighthouse keeper wrote one line in his book every evening. On the first day of winter he wrote that the
sea was calm and that a ship had passed. On the second day he wrote"""
_DATA = """[
  {"id": 1, "name": "first", "price": 10, "tags": ["new", "red"]},
  {"id": 2, "name": "second", "price": 20, "tags": ["new", "blue"]},
  {"id": 3, "name":"""
_KINDS = {"code": _CODE, "edit": _EDIT, "text": _TEXT, "data": _DATA}
_LONG_CHARACTERS = 1600
"""Least characters of a long prompt."""


@dataclass(frozen=True, slots=True)
class CheckPrompt:
    """A prompt."""

    kind: str
    """The kind of text it asks for."""
    text: str
    """The prompt."""

    @property
    def long(self) -> CheckPrompt:
        """The same prompt behind a long context of its own kind."""
        times = -(-_LONG_CHARACTERS // max(1, len(self.text)))
        return CheckPrompt(f"{self.kind}, long context", "\n".join([self.text] * times))


def check_prompts(files: Sequence[Path], count: int) -> list[CheckPrompt]:
    """Returns so many prompts, of all kinds in turn. Without files they are the built-in ones, short and long.

    Raises:
        ValueError: a file cannot be read or has another format, or has no prompts.
    """
    if files:
        found = [CheckPrompt(each.task, each.text) for each in read_prompts(files, count)]
        if not found:
            raise ValueError("--prompts: the files contain no prompts")
    else:
        short = [CheckPrompt(kind, text) for kind, text in _KINDS.items()]
        found = [*short, *(prompt.long for prompt in short)]
    return [found[index % len(found)] for index in range(count)]


def speed_prompts(prompts: Sequence[CheckPrompt]) -> list[CheckPrompt]:
    """Returns one prompt of each kind, those of one kind together."""
    return list({prompt.kind: prompt for prompt in prompts}.values())
