"""The kernels that may compute on a CPU, by name."""

from typing import Literal

Kernels = Literal["auto", "torch", "baseline", "avx2", "avx512", "avx512bf16", "amx"]
"""torch: the compiled library is left alone. Then the kinds of vectors that the library is compiled for, the least
first; avx512bf16 and amx are avx512 with products of bfloat16 by these instructions. auto: the last of them that the
processor and the build have."""
