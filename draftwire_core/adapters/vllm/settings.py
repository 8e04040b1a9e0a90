"""Settings of the adapter, read from DRAFTWIRE_VLLM_* variables."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from draftwire_core.adapters.common.settings import EngineAdapterSettings, HostEngine
from draftwire_core.runtime.process.settings import split_at_commas, variable_of
from draftwire_core.runtime.process.startup_error import StartupError

VLLM = HostEngine(name="vLLM", key="vllm")


class VllmSettings(EngineAdapterSettings):
    """Gives a vLLM server remote drafters."""

    model_config = SettingsConfigDict(env_prefix="DRAFTWIRE_VLLM_")

    HOST: ClassVar[HostEngine] = VLLM

    feature_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode, BeforeValidator(split_at_commas)] = ()
    """Indices of the layers that the states enter which drafters may read (EAGLE-3, DFlash), separated by commas; the
    number of layers stands for what leaves the last one. Runner V2 only. Default: none, and such drafters are
    refused."""
    coupled_sampling: bool = True
    """Whether the target's tokens are drawn by coupled sampling, and draft tokens accepted if they equal these. If not,
    vLLM samples in its own way, and drafters draft greedily."""


def check_coupling(**configured: object) -> None:
    """Raises StartupError for settings of vLLM that coupled sampling cannot do. configured: their values, by name."""
    for name, value in configured.items():
        possible = _COUPLED[name]
        if value not in possible:
            variable = variable_of(VllmSettings, "coupled_sampling")
            raise StartupError(
                f"{name} is {value}, but coupled sampling requires {' or '.join(map(str, possible))}; to keep it, set "
                f"{variable} to false"
            )


_COUPLED: dict[str, tuple[object, ...]] = {
    "rejection_sample_method": ("standard",),
    "logprobs_mode": ("raw_logprobs", "raw_logits"),
    "return_sampling_mask": (False,),
}
"""Values of vLLM's settings that coupled sampling is able to serve."""
