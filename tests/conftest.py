"""Settings that hold for all tests."""

import importlib.util
import os

TORCH_THREADS = 2

# Before anything imports torch: small models run best on few threads, and services started by a test inherit this.
os.environ.setdefault("OMP_NUM_THREADS", str(TORCH_THREADS))
# Threads that wait for others sleep: where other processes are busy, spinning took three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(TORCH_THREADS)
