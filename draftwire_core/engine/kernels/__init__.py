"""The engine's compiled kernels for CPUs. Their C sources are in `csrc`, by what they compute."""
