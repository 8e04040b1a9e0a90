"""Settings that hold for all tests."""

import importlib.util
import os

TORCH_THREADS = 2

# Before anything imports torch: small models run best on few threads, and services started by a test inherit this.
os.environ.setdefault("OMP_NUM_THREADS", str(TORCH_THREADS))

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(TORCH_THREADS)
