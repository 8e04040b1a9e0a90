"""The names of the CPU kernels; apart from `library`, since settings need them without torch."""

from typing import Literal

Kernels = Literal["auto", "torch", "baseline", "avx2", "avx512", "avx512bf16", "amx"]
"""torch: the compiled library is not used. baseline, avx2 and avx512: the vectors that the library uses, narrowest
first. avx512bf16 and amx: avx512 vectors, with gemm kernels that use these instructions. auto: the last of these names
that the processor and the build support."""
