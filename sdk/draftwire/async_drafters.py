"""The drafters of a verifier, managed while requests run, for asyncio."""

from draftwire._async.drafters import AsyncDrafters

__all__ = ["AsyncDrafters"]
