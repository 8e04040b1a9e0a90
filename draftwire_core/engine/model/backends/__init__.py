"""Where a model runs: on a CPU, on a GPU, or as a part on one of several ranks."""
