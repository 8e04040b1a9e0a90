"""The engine: token trees, coupled sampling, KV slots, packed model passes. It uses torch and no gRPC.

The four public names below are imported on first use, since importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire_core.engine.acceptance.acceptance import Acceptance, RuleName
    from draftwire_core.engine.in_process import InProcessGenerator
    from draftwire_core.engine.sampling.sampling_params import SamplingParams

__all__ = ["Acceptance", "InProcessGenerator", "RuleName", "SamplingParams"]

_HOMES = {
    "Acceptance": "acceptance.acceptance",
    "InProcessGenerator": "in_process",
    "RuleName": "acceptance.acceptance",
    "SamplingParams": "sampling.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
