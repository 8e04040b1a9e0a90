"""A GPU's memory, as far as torch keeps it for itself."""

from __future__ import annotations

import torch


def return_unused() -> None:
    """Returns memory of GPUs that torch holds and nothing uses, so that another model or process can have it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
