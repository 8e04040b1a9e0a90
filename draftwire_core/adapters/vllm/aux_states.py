"""The hidden states that runner V2 hands to its speculator, asked for without a draft model of vLLM's own.

Runner V2 asks a target for auxiliary hidden states where the method of speculation is one of vLLM's own that reads
them. The method `custom_class` is none of those, so the runner's attribute that says so is set here, between the
making of the runner and the loading of the target, which is when draftwire's worker gets to see it. The runner then
taps the target's default layers while it loads it; the worker chooses the others after that, before the first pass.
"""

from __future__ import annotations

from typing import Any

import torch

from draftwire_core.adapters.common.step_features import FeatureTaps
from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.runtime.process.settings import variable_of
from draftwire_core.runtime.process.startup_error import StartupError

VARIABLE = variable_of(VllmSettings, "feature_layers")
_COMPILED_KEY = "draftwire_feature_layers"


def taps_of(vllm_config: Any, settings: VllmSettings, device: torch.device) -> FeatureTaps:
    """Returns the taps that the settings ask for. Raises StartupError for what a VllmConfig's target does not have."""
    model = vllm_config.model_config
    layers = int(model.hf_text_config.num_hidden_layers)
    tapped = tuple(sorted(set(settings.feature_layers)))
    if tapped[-1] > layers:
        raise StartupError(f"{VARIABLE}: must be indices up to {layers}, the number of layers, got {tapped[-1]}")
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise StartupError(f"{VARIABLE}: not supported with pipeline parallelism")
    return FeatureTaps(
        tapped,
        next(iter(model.architectures or ()), ""),
        layers,
        int(model.get_hidden_size()),
        model.dtype,
        device,
        VARIABLE,
    )


def ask_for_states(runner: Any, taps: FeatureTaps) -> None:
    """Makes a runner hand the auxiliary hidden states to its speculator. Raises StartupError."""
    config = runner.vllm_config
    # vLLM keeps compiled targets, by a hash of the configuration; one with other outputs must not be taken for this.
    if not isinstance(config.additional_config, dict):
        raise StartupError(f"{VARIABLE}: not supported with an additional_config that is not a dictionary")
    config.additional_config = {**config.additional_config, _COMPILED_KEY: list(taps.tapped)}
    runner.use_aux_hidden_state_outputs = True
