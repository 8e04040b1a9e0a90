"""The synchronous client."""

from draftwire._sync.client import Client, GenerationStream

__all__ = ["Client", "GenerationStream"]
