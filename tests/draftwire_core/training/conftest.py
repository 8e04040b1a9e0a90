"""A target and a draft of a few thousand weights, and texts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.harness.models.tiny_checkpoint import write_checkpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that agrees with the target by chance only."""
    return write_checkpoint(tmp_path_factory.mktemp("draft"), seed=1)


@pytest.fixture
def base(target: Path) -> PreTrainedModel:
    """The target, to be trained on."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(target)
    return model


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of texts to learn from."""
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": " ".join(f"w{3 * line + word}" for word in range(8))}) for line in range(11)]
    path.write_text("\n".join(lines))
    return path
