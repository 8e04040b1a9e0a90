"""Coupled sampling in two kernels of Triton, which a CUDA graph can hold. They need the package triton."""
