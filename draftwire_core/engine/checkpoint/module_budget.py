"""A bound on the modules that a thread makes, so that no configuration can make it build without end.

Libraries make modules by the numbers in a configuration, whichever field these are in. torch calls a hook for each
module that becomes a part of another; it counts, and stops what is too much. Modules that a constructor makes in
threads of its own are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.checkpoint.weight_files import WeightTotals

_LEAST = 1024
_EACH = 4
"""Modules for each tensor of the files; a decoder layer has fewer than two."""


class _Budget:
    def __init__(self, modules: int):
        self.left = modules


_budget: ContextVar[_Budget | None] = ContextVar("module_budget", default=None)


@contextmanager
def module_budget(name: str, tensors: int) -> Iterator[None]:
    """Raises ModelLoadError within the context once this thread has made more modules than a model has that fits files
    with so many tensors. name: the checkpoint's, for the message."""
    budget = _Budget(_LEAST + _EACH * tensors)
    token = _budget.set(budget)
    refusal = ModelLoadError(
        f"model {name}: its config.json describes a model of more parts than its files, which have {tensors} tensors, "
        "can fill"
    )
    try:
        yield
    except (Exception, _OverBudget) as error:  # some constructors turn every error into one of their own
        if budget.left < 0:
            raise refusal from error
        raise
    finally:
        _budget.reset(token)
    if budget.left < 0:  # or swallow it
        raise refusal


class _OverBudget(BaseException):
    """Raised for each module too many."""


def _count(module: nn.Module, name: str, part: nn.Module | None) -> None:
    budget = _budget.get()
    if budget is not None:
        budget.left -= 1
        if budget.left < 0:
            raise _OverBudget
    stop_if_abandoned()


def _stop(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Called for each tensor that a module gets, also by transformers as it reads them one by one."""
    stop_if_abandoned()


# Once and for good: threads that load at the same time would change the tables of hooks under each other.
register_module_module_registration_hook(_count)
register_module_parameter_registration_hook(_stop)


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
