"""Settings that hold for all tests."""

import importlib.util
import os

from hypothesis import settings

TORCH_THREADS = 2

settings.register_profile(
    "short", max_examples=60, stateful_step_count=60, derandomize=True, database=None, deadline=None, print_blob=True
)
settings.register_profile("long", settings.get_profile("short"), max_examples=3000, derandomize=False)
settings.load_profile("short")  # --hypothesis-profile=long on the command line is loaded later and overrides this

# Set before anything imports torch: small models run fastest on few threads. Services started by tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", str(TORCH_THREADS))
# Idle OpenMP threads sleep: spinning took three times as long when other processes were busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Set before anything imports triton: its kernels run in Triton's interpreter, on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(TORCH_THREADS)
