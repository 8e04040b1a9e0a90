"""``draftwire train eagle3``, ``dflash`` and ``medusa``: drafters on a target's hidden states."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from draftwire.cli.failure import Failure
from draftwire_core.training.cli.options import check_training_installed, device_of, show_downloads
from draftwire_core.training.frozen_target.order import (
    DflashOrder,
    EagleOrder,
    MedusaOrder,
    TrainingError,
    TrainingOrder,
)

OrderT = TypeVar("OrderT", bound=TrainingOrder)


def ordered(kind: type[OrderT]) -> Callable[[Callable[[OrderT], None]], Callable[..., None]]:
    """Makes a function of an order a command whose options are the fields of the order."""

    def decorate(command: Callable[[OrderT], None]) -> Callable[..., None]:
        @wraps(command)
        def run(*values: Any, **named: Any) -> None:
            check_training_installed()
            show_downloads(_say)
            try:
                order = kind(*values, **named)
                command(dataclasses.replace(order, device=device_of(order.device, _say)))
            except TrainingError as error:
                raise Failure(str(error)) from error

        # typer reads both, and what `wraps` copied are the command's own.
        run.__signature__ = inspect.Signature(_options(kind))  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in _options(kind)}
        return run

    return decorate


def _options(kind: type[TrainingOrder]) -> list[inspect.Parameter]:
    """Returns the options of a command: what is required, those of this kind, and those of all kinds."""
    fields, hints = dataclasses.fields(kind), get_type_hints(kind, include_extras=True)
    common = {each.name for each in dataclasses.fields(TrainingOrder)}
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in sorted(fields, key=lambda each: (each.default is not dataclasses.MISSING, each.name in common))
    ]


def _say(line: str) -> None:
    print(line, flush=True)


@ordered(EagleOrder)
def eagle3(order: EagleOrder) -> None:
    """Train an EAGLE-3 drafter on a frozen target; attach it as local:eagle3?model=DIR."""
    from draftwire_core.training.eagle.training import run

    run(order, _say)


@ordered(DflashOrder)
def dflash(order: DflashOrder) -> None:
    """Train a DFlash drafter on a frozen target; attach it as local:dflash?model=DIR."""
    from draftwire_core.training.dflash.training import run

    run(order, _say)


@ordered(MedusaOrder)
def medusa(order: MedusaOrder) -> None:
    """Train Medusa heads on a frozen target; attach them as local:medusa?heads=DIR."""
    from draftwire_core.training.medusa.training import run

    run(order, _say)
