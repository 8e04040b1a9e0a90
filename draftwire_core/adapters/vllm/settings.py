"""Settings of the adapter, read from DRAFTWIRE_VLLM_* variables."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from draftwire_core.adapters.common.settings import EngineAdapterSettings, HostEngine
from draftwire_core.runtime.process.settings import split_at_commas

VLLM = HostEngine(name="vLLM", key="vllm")


class VllmSettings(EngineAdapterSettings):
    """Gives a vLLM server remote drafters."""

    model_config = SettingsConfigDict(env_prefix="DRAFTWIRE_VLLM_")

    HOST: ClassVar[HostEngine] = VLLM

    feature_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode, BeforeValidator(split_at_commas)] = ()
    """Indices of the layers that the states enter which drafters may read (EAGLE-3, DFlash), separated by commas; the
    number of layers stands for what leaves the last one. Runner V2 only. Default: none, and such drafters are
    refused."""
