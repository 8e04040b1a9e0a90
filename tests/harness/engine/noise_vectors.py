"""The test vectors of the noise that docs/coupled-sampling.md publishes."""

VECTORS = [
    (0, 0, 0, 1.829305),
    (0, 0, 1, 0.9145189),
    (0, 0, 63, -0.6513865),
    (0, 0, 64, 1.577474),
    (1, 0, 0, -0.5176397),
    (0, 1, 0, 1.136305),
    (7, 100, 151935, 2.278349),
    (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 12345, 0.8279431),
    (0x123456789ABCDEF, 4096, 50256, -0.1440245),
    (0x100000000, 17, 2, -1.02995),
    (42, 0, 8, 4.873344),
]
"""(seed, position, token, g)"""
