"""The asyncio client."""

from draftwire._async.client import AsyncClient, AsyncGenerationStream

__all__ = ["AsyncClient", "AsyncGenerationStream"]
