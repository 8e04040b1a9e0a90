"""The drafters of a verifier, managed while requests run."""

from draftwire._sync.drafters import Drafters

__all__ = ["Drafters"]
