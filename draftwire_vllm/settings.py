"""Settings of the adapter, read from DRAFTWIRE_VLLM_* variables."""

from __future__ import annotations

from typing import ClassVar

from pydantic_settings import SettingsConfigDict

from engine_adapter.host_engine import HostEngine
from engine_adapter.settings import EngineAdapterSettings

VLLM = HostEngine(name="vLLM", key="vllm")


class AdapterSettings(EngineAdapterSettings):
    """Gives a vLLM server remote drafters."""

    model_config = SettingsConfigDict(env_prefix="DRAFTWIRE_VLLM_")

    HOST: ClassVar[HostEngine] = VLLM
