"""The asyncio client."""

from draftwire._async.client import AsyncClient
from draftwire._async.generations import AsyncGenerationStream

__all__ = ["AsyncClient", "AsyncGenerationStream"]
