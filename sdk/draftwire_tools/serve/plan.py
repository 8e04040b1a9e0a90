"""The plan of what is served, and how the processor's cores are divided."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftwire_tools.serve.auto import AUTO
from draftwire_tools.serve.device import Device

LOCAL = "local:"
DRAFT = "local:draft"
"""The drafter in the verifier that loads a draft model."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command's flags besides those of models and threads."""

    device: Device
    chat_template: Path | None = None
    """File with the chat template to use in place of the model's own."""
    target_tokenizer: str | None = None
    """Directory, GGUF file or hub id of the target's tokenizer, for draft models with another one."""
    gateway_flags: tuple[str, ...] = ()
    """Flags for the gateway, such as those of TLS."""
    learn: bool = False
    """Whether the draft model in the verifier learns from what is served."""
    learn_directory: Path | None = None
    """Directory of what is learned; None for the usual one."""
    learn_prompts: Path | None = None
    """File with further prompts that the target continues while nothing else runs."""
    learn_probabilities: bool = False
    """Whether it learns the probabilities of the target's likeliest tokens."""

    @property
    def scheme(self) -> str:
        """Scheme of the endpoint's address, by the gateway's flags and its variables, which it inherits."""
        secured = "--tls-cert" in self.gateway_flags or os.environ.get("DRAFTWIRE_GATEWAY_TLS_CERT")
        return "https" if secured else "http"


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The processes of one served model."""

    model: str
    """The target: a directory, a GGUF file or a hub id."""
    drafts: dict[str, str]
    """Draft models, each served by a process of its own, by the names of their drafters."""
    local: tuple[str, ...]
    """Addresses of drafters in the verifier."""
    verifier_threads: int
    drafter_threads: int
    """Compute threads of each drafter service."""
    options: Options = field(repr=False)
    chosen: frozenset[str] = frozenset()
    """Draft models and addresses that nobody named: if one cannot draft, the others serve without it."""


def plan_of(
    model: str, drafts: Sequence[str], threads: int | None, options: Options, chosen: Collection[str] = ()
) -> ServePlan:
    """Returns the plan for a target and its drafters: draft models, and addresses of drafters in the verifier.

    Each draft model gets a quarter of the threads, at least one; the target gets the others, since it takes the
    longest.

    Args:
        model: the target.
        drafts: draft models and ``local:`` addresses.
        threads: compute threads of all processes together; None for one for each core of this process.
        options: what else was given.
        chosen: those of the drafts that nobody named.

    """
    models = [each for each in drafts if not each.startswith(LOCAL)]
    local = tuple(each for each in drafts if each.startswith(LOCAL))
    total = threads or _cores()
    drafter = max(1, total // 4)
    verifier = max(1, total - drafter * len(models))
    return ServePlan(model, _named(models), local, verifier, drafter, options, frozenset(chosen))


def check(drafts: Sequence[str], options: Options) -> None:
    """Checks what was given, before anything is fetched or started.

    Args:
        drafts: draft models, ``local:`` addresses and AUTO.
        options: what else was given.

    Raises:
        ValueError: a draft is named twice, a file does not exist, or a flag has nothing to apply to.
    """
    if len(set(drafts)) < len(drafts):
        raise ValueError("--draft: the same draft is given twice")
    if options.chat_template is not None and not options.chat_template.is_file():
        raise ValueError(f"--chat-template: there is no file {options.chat_template}")
    if options.target_tokenizer is not None and all(each.startswith(LOCAL) or each == AUTO for each in drafts):
        raise ValueError("--target-tokenizer: applies to draft models (--draft), and none is given")
    if options.learn_directory is not None and not options.learn:
        raise ValueError("--learn-dir: applies to --learn, which is not given")
    if options.learn_prompts is not None and not options.learn:
        raise ValueError("--learn-prompts: applies to --learn, which is not given")
    if options.learn_probabilities and not options.learn:
        raise ValueError("--learn-probabilities: applies to --learn, which is not given")
    if options.learn_prompts is not None and not options.learn_prompts.is_file():
        raise ValueError(f"--learn-prompts: there is no file {options.learn_prompts}")


def name_of(model: str) -> str:
    """Returns the name of a model for people: the last part of its path or hub id, without .gguf; a tag of the id
    follows after a hyphen."""
    name = Path(model).resolve().name if Path(model).exists() else model.rstrip("/").rpartition("/")[2]
    return name.removesuffix(".gguf").replace(":", "-") or model


def _named(models: Sequence[str]) -> dict[str, str]:
    """Returns the models by their names, which a number tells apart where they are the same."""
    found: dict[str, str] = {}
    for model in models:
        name, number = name_of(model), 1
        while name in found:
            number += 1
            name = f"{name_of(model)}-{number}"
        found[name] = model
    return found


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
