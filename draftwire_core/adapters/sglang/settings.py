"""Settings of the adapter, read from DRAFTWIRE_SGLANG_* variables."""

from __future__ import annotations

from typing import ClassVar

from pydantic_settings import SettingsConfigDict

from draftwire_core.adapters.common.settings import EngineAdapterSettings, HostEngine
from draftwire_core.runtime.process.address import ListenAddress

SGLANG = HostEngine(name="SGLang", key="sglang")


class SglangSettings(EngineAdapterSettings):
    """Gives an SGLang server remote drafters."""

    model_config = SettingsConfigDict(env_prefix="DRAFTWIRE_SGLANG_")

    HOST: ClassVar[HostEngine] = SGLANG

    listen: ListenAddress = "127.0.0.1:50062"
    """Address to serve the drafter pool on over gRPC, HOST:PORT. Port 0 picks a free one; the log says which."""
    trees: bool = True
    """Verify trees of draft tokens. With deterministic inference chains are verified in any case."""
