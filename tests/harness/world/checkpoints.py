"""A target with sub-millisecond steps, and draft models that agree with it often, sometimes and never."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from tests.harness.models.tiny_checkpoint import write_checkpoint

VOCABULARY = 64


@dataclass(frozen=True)
class Checkpoints:
    """Directories of the models."""

    target: Path
    drafts: dict[str, Path]
    """Draft models by the drafter's name."""


def write_checkpoints(directory: Path) -> Checkpoints:
    """Writes the models: good and poor drafts are the target with noise in its weights, the wild one is unrelated."""
    target = write_checkpoint(directory / "target", vocab_size=VOCABULARY, words=VOCABULARY - 3)
    drafts = {"good": _disturbed(target, directory / "good", 0.05), "poor": _disturbed(target, directory / "poor", 0.5)}
    drafts["wild"] = write_checkpoint(directory / "wild", seed=1, vocab_size=VOCABULARY, words=VOCABULARY - 3)
    return Checkpoints(target, drafts)


def _disturbed(source: Path, directory: Path, noise: float) -> Path:
    """Copies a model, adding noise of `noise` standard deviations to its weights."""
    shutil.copytree(source, directory)
    model = LlamaForCausalLM.from_pretrained(source)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * noise * parameter.std())
    model.save_pretrained(directory)
    return directory
