"""What is to be served, and how the processor's cores are divided."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwire.cli.serve.device import Device

LOCAL = "local:"
LOOKUP = "local:ngram"
"""The drafter that needs no model: it looks the text up in itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes of one served model."""

    model: str
    """The target: a directory, a GGUF file or a hub id."""
    drafts: tuple[str, ...]
    """Draft models, each served by a process of its own."""
    local: tuple[str, ...]
    """Addresses of drafters in the verifier."""
    verifier_threads: int
    drafter_threads: int
    """Compute threads of each drafter service."""
    device: Device
    chat_template: Path | None = None
    """File with the chat template to use in place of the model's own."""


def plan_of(model: str, drafts: Sequence[str], threads: int | None, chat_template: Path | None, device: Device) -> Plan:
    """Returns the plan for a target and its drafters: draft models, and addresses of drafters in the verifier.

    Without any, the text is looked up in itself. Each draft model gets a quarter of the threads, at least one; the
    target gets the others, since it takes the longest.

    Args:
        model: the target.
        drafts: draft models and ``local:`` addresses.
        threads: compute threads of all processes together; None for one for each core of this process.
        chat_template: file with a chat template.
        device: device of the models.

    Raises:
        ValueError: a draft is named twice, or there is no such file.
    """
    if len(set(drafts)) < len(drafts):
        raise ValueError("--draft: the same draft is given twice")
    if chat_template is not None and not chat_template.is_file():
        raise ValueError(f"--chat-template: there is no file {chat_template}")
    models = tuple(each for each in drafts if not each.startswith(LOCAL))
    local = tuple(each for each in drafts if each.startswith(LOCAL)) or (() if models else (LOOKUP,))
    total = threads or _cores()
    drafter = max(1, total // 4)
    return Plan(model, models, local, max(1, total - drafter * len(models)), drafter, device, chat_template)


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
