"""The types of keys and values in the KV cache; apart from the cache, since settings need them without torch."""

from typing import Literal

KvDtype = Literal["auto", "float16", "q8_0"]
"""The model's dtype, float16, or 8-bit integers with a scale per 32 elements of a head."""
