"""The names of the CPU kernels; apart from `library`, since settings need them without torch."""

from typing import Literal

Kernels = Literal[
    "auto", "torch",
    "baseline", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx",
    "neon", "dotprod", "i8mm",
]  # fmt: skip
"""torch: the compiled library is not used. baseline: plain C. On x86, avx2 and avx512: the vectors that the library
uses; avxvnni: avx2 vectors, and avx512vnni, avx512bf16 and amx: avx512 vectors, with gemm kernels that use these
instructions. On ARM, neon, dotprod and i8mm: gemm kernels that use these instructions. auto: the last of these names
that the processor and the build support."""
