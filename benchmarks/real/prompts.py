"""The prompts: twenty each of six tasks, written for this benchmark."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).parent / "prompts"
TASKS = ("chat", "code", "summary", "edit", "translation", "retrieval")
_SECOND_PASSAGE = 7
"""Number of passages from a question's own passage to the other one that it gets."""


@dataclass(frozen=True)
class RealPrompt:
    """A prompt, as somebody would send it to a chat model."""

    task: str
    """One of TASKS."""
    name: str
    """The prompt's name within its task."""
    text: str
    """The message."""


def real_prompts(count: int) -> list[RealPrompt]:
    """Returns the first `count` prompts of each task, from 1 to 20, task by task. Raises ValueError for another
    count."""
    made = {
        "chat": [(each["id"], each["text"]) for each in _read("chat")],
        "code": [(each["id"], each["text"]) for each in _read("code")],
        "summary": [(each["id"], _summary(each)) for each in _read("passages")],
        "edit": [(each["id"], f"{each['change']}\n\n{each['text'].strip()}") for each in _read("edit")],
        "translation": [
            (each["id"], f"Translate the following text into {each['into']}.\n\n{each['text']}")
            for each in _read("translation")
        ],
        "retrieval": _retrieval(_read("passages")),
    }
    most = min(map(len, made.values()))
    if not 1 <= count <= most:
        raise ValueError(f"--prompts: expected 1 to {most} of each task, got {count}")
    return [RealPrompt(task, name, text.strip()) for task in TASKS for name, text in made[task][:count]]


def _summary(passage: dict[str, str]) -> str:
    return f"Summarise the following text in three sentences.\n\n{passage['text']}"


def _retrieval(passages: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Returns questions, each with the passage that answers it and one that does not, in either order."""
    made = []
    for number, passage in enumerate(passages):
        texts = [passage["text"], passages[(number + _SECOND_PASSAGE) % len(passages)]["text"]]
        given = "\n\n".join(texts[:: 1 if number % 2 else -1])
        question = f"Answer from the text above, and quote the sentence that says so. {passage['question']}"
        made.append((passage["id"], f"{given}\n\n{question}"))
    return made


def _read(name: str) -> list[dict[str, Any]]:
    found = tomllib.loads((PROMPTS / f"{name}.toml").read_text(encoding="utf-8"))
    [entries] = found.values()
    return list(entries)
