"""A second implementation of the noise, from the paper and the definition, one Python number at a time."""

import math


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    """Computes Philox-4x32-10 with Python's unbounded integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return [c0, c1, c2, c3]


def scalar_gumbel(seed: int, position: int, token: int) -> float:
    """Computes the definition in the docstring of draftwire_core/engine/sampling/gumbel.py."""

    def word(index: int, domain: int) -> int:
        return scalar_philox([index // 4, position, 0, domain], [seed % 2**32, seed >> 32])[index % 4]

    def uniform(x: int) -> float:
        return (x + 0.5) / 2**32

    block = token // 64
    maximum = math.log(64) - math.log(-math.log(uniform(word(block, 0))))
    if token % 64 == word(block, 1) >> 26:
        return maximum
    return -math.log(math.exp(-maximum) - math.log(uniform(word(token, 2))))
