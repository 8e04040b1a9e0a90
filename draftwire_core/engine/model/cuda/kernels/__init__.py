"""Kernels of the GPU path, in Triton: every sum over several numbers in one order, whatever else is in the pass."""
