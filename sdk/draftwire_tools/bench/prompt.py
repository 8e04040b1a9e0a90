"""The prompts of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draftwire
from draftwire_tools.prompt_file import PromptEntry, read_prompt_file

BUNDLED = {
    "code": "models/prompts.jsonl",
    "edit": "benchmarks/prompts/edit.jsonl",
    "text": "benchmarks/prompts/text.jsonl",
}
"""The prompts of a checkout, by task: held-out code, files to edit, plain English."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt."""

    task: str
    """The kind of text it asks for; figures are reported by task."""
    name: str
    """The prompt's name within the task."""
    text: str
    """The prompt."""
    prediction: str | None = None
    """The expected output, if the task has one."""


def read_prompts(files: Iterable[Path], count: int) -> list[BenchPrompt]:
    """Returns the first prompts of each task in files, grouped by task.

    A ``.jsonl`` file has one object per line: ``text``, and optionally ``id``, ``task`` (default: the file's name) and
    ``prediction``. Any other file is one prompt.

    Raises:
        ValueError: a file cannot be read or has another format; the message names it.
    """
    prompts: list[BenchPrompt] = []
    for path in files:
        prompts += _read(path, path.stem)
    return _first(prompts, count)


def bundled_prompts(count: int) -> list[BenchPrompt]:
    """Returns the first prompts of each task bundled with a checkout.

    Raises:
        ValueError: this installation is not a checkout.
    """
    for place in (Path.cwd(), Path(draftwire.__file__).resolve().parents[2]):
        if all((place / name).is_file() for name in BUNDLED.values()):
            return _first([each for task, name in BUNDLED.items() for each in _read(place / name, task)], count)
    raise ValueError("--prompts: required here; only a checkout of draftwire has default prompts")


def _first(prompts: Iterable[BenchPrompt], count: int) -> list[BenchPrompt]:
    by_task: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        of_task = by_task.setdefault(prompt.task, [])
        if len(of_task) < count:
            of_task.append(prompt)
    return [prompt for of_task in by_task.values() for prompt in of_task]


def _read(path: Path, task: str) -> list[BenchPrompt]:
    entries = read_prompt_file(path, "--prompts", by_line=False)
    if path.suffix != ".jsonl":
        return [BenchPrompt(task, path.name, entry.text) for entry in entries]
    return [_prompt(entry, number, task) for number, entry in enumerate(entries, 1)]


def _prompt(entry: PromptEntry, number: int, task: str) -> BenchPrompt:
    values: dict[str, Any] = {"id": str(number), "task": task, "prediction": None} | dict(entry.fields)
    for key in ("id", "task", "prediction"):
        if not isinstance(values[key], str) and not (key == "prediction" and values[key] is None):
            raise ValueError(f'{entry.place}: "{key}" is not a string')
    return BenchPrompt(values["task"], values["id"], entry.text, values["prediction"])
