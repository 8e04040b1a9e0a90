"""Random corruption of GGUF files, most of it in their headers."""

from __future__ import annotations

import random
import struct

_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 30, 39, 77, 255, 2**16, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40)
_NUMBERS += (16, 23, 34, 41, 42)  # types of tensors that are converted
_NUMBERS += (2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""Counts, lengths, types and offsets that are wrong almost everywhere."""


def mutate_file(content: bytes, header: int, rng: random.Random) -> bytes:
    """Returns a file with a few bits flipped, numbers overwritten, parts cut out, doubled, exchanged or cut off.

    header: bytes of the header, where nine of ten changes are made.
    """
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(min(header, len(spoilt)) if rng.random() < 0.9 and spoilt else len(spoilt) + 1)
        kind = rng.randrange(10)
        if kind < 4 and at < len(spoilt):
            spoilt[at] ^= 1 << rng.randrange(8)
        elif kind < 7:
            # Most numbers in a header follow names, so few are aligned.
            width = rng.choice((4, 8))
            spoilt[at : at + width] = struct.pack("<Q", rng.choice(_NUMBERS))[:width]
        elif kind == 7:
            del spoilt[at:]
        elif kind == 8:
            size = rng.randrange(1, 64)
            if rng.random() < 0.5:
                del spoilt[at : at + size]
            else:
                spoilt[at:at] = spoilt[at : at + size]
        else:
            other, size = rng.randrange(len(spoilt) + 1), rng.randrange(1, 32)
            spoilt[at : at + size] = spoilt[other : other + size]
    return bytes(spoilt)
