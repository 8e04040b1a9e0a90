"""GPU: one CUDA device."""
