"""The parts of a VllmConfig, and of a runner V2, that the adapter reads where drafters read hidden states."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.harness.stand_ins.fake_vllm import vllm_config


def tapped_config(model: Path, *, layers: int, hidden_size: int, **changes: Any) -> Any:
    """Returns a VllmConfig of a float32 target."""
    config = vllm_config(model)
    config.model_config.dtype = torch.float32
    config.model_config.hf_text_config = SimpleNamespace(num_hidden_layers=layers)
    config.model_config.get_hidden_size = lambda: hidden_size
    config.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
    config.additional_config = {}
    for name, value in changes.items():
        setattr(config, name, value)
    return config


class TappedModel:
    """A target that is told which layers to tap."""

    layers: tuple[int, ...] = ()

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.layers = layers


def tapping(speculator: Any, config: Any) -> tuple[Any, TappedModel]:
    """Lets a speculator tap a runner's target as draftwire's worker does. Returns the runner and the target."""
    runner = SimpleNamespace(vllm_config=config, use_aux_hidden_state_outputs=False)
    speculator.tap(runner)
    model = TappedModel()
    speculator.target_loaded(model)
    return runner, model
