"""The synchronous client."""

from draftwire._sync.client import Client
from draftwire._sync.generations import GenerationStream

__all__ = ["Client", "GenerationStream"]
