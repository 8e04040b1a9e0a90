"""The size of the model that a configuration describes, compared with the checkpoint's files before it is built."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.weight_files import WeightTotals
from draftwire_core.engine.model.reading.module_budget import module_budget

_TIED = 2
"""Factor by which a model may have more parameters than its files have elements: weights that it uses twice."""
_COMPUTED = 1 << 16
"""Parameters that files need not have, as they are computed."""


def skeleton(name: str, tensors: int, make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Makes a model without memory for its weights, on the device "meta", if it has no more modules than fit files with
    so many tensors. Raises ModelLoadError, and what `make` raises."""
    with module_budget(name, tensors), torch.device("meta"):
        return make()


def check_declared(name: str, totals: WeightTotals, make: Callable[[], PreTrainedModel]) -> int:
    """Returns the number of parameters of the model that `make` makes. Raises ModelLoadError if the files cannot hold
    them."""
    model = skeleton(name, totals.tensors, make)
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    if parameters > _TIED * totals.elements + _COMPUTED:
        raise ModelLoadError(
            f"model {name}: its config.json describes {parameters} parameters, but its files hold {totals.elements}"
        )
    return parameters
