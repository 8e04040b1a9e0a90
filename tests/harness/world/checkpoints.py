"""A target that takes a fraction of a millisecond, and draft models that agree with it often, sometimes and never."""

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
    """By the drafter's name."""


def write_checkpoints(directory: Path) -> Checkpoints:
    """Writes them: the good and the poor draft are the target with noise in its weights, the wild one is another."""
    target = write_checkpoint(directory / "target", vocab_size=VOCABULARY, words=VOCABULARY - 3)
    drafts = {"good": _disturbed(target, directory / "good", 0.05), "poor": _disturbed(target, directory / "poor", 0.5)}
    drafts["wild"] = write_checkpoint(directory / "wild", seed=1, vocab_size=VOCABULARY, words=VOCABULARY - 3)
    return Checkpoints(target, drafts)


def _disturbed(source: Path, directory: Path, noise: float) -> Path:
    """A copy whose weights have noise of so many standard deviations."""
    shutil.copytree(source, directory)
    model = LlamaForCausalLM.from_pretrained(source)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * noise * parameter.std())
    model.save_pretrained(directory)
    return directory
