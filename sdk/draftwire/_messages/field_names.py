"""Mapping of the contract's field names to the parameters of the SDK's methods.

A service names fields of the request message: ``sampling.temperature``, ``text``, ``new_name``. Only this module
replaces them by parameter names in error messages; ``DraftwireError.fields`` keeps the contract's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from draftwire._messages.methods import FINISH_ROLLOUT, GENERATE, START_ROLLOUT, SWAP_DRAFTER, TOKENIZE, VERIFY
from draftwire._types.option import options_of
from draftwire._types.options import GenerateOptions
from draftwire.errors import DraftwireError, ErrorReason, InvalidFieldError

Params = ParamSpec("Params")
ResultT = TypeVar("ResultT")

_Renames = Sequence[tuple[str, str]]
"""Beginnings of paths and their replacements; the first match counts."""

_GENERATE: _Renames = (
    ("structured_output.choice.texts", "choice"),
    *((option.path, name) for name, option in options_of(GenerateOptions).items() if option.path not in (None, name)),
    ("sampling.", ""),
    ("text", "prompt"),
    ("token_ids.ids", "prompt"),
    ("token_ids", "prompt"),
    ("messages.", ""),
    ("structured_output.", ""),
    ("speculation.drafter_names", "speculation.drafters"),
    ("speculation.prediction.text", "speculation.prediction"),
    ("speculation.prediction.token_ids", "speculation.prediction"),
)
_POOL: _Renames = (("old_name", "old"), ("new_name", "new"))
_BY_PATH: dict[str, _Renames] = {
    GENERATE.path: _GENERATE,
    VERIFY.path: _GENERATE,
    TOKENIZE.path: (("messages.", ""),),
    SWAP_DRAFTER.path: _POOL,
    START_ROLLOUT.path: _POOL,
    FINISH_ROLLOUT.path: _POOL,
}


def parameter_of(path: str, field: str) -> str:
    """Returns the SDK's parameter for a field of a method's request.

    Args:
        path: gRPC path of the method.
        field: path of the field in the request, for example ``sampling.logit_bias[5]``.
    """
    for old, new in _BY_PATH.get(path, ()):
        rest = field[len(old) :]
        if field.startswith(old) and (old.endswith(".") or not re.match(r"\w", rest)):
            return new + rest
    return field


def name_parameters(error: DraftwireError, path: str) -> None:
    """Makes an error's message name parameters instead of fields.

    Args:
        error: the error of a call of the method.
        path: gRPC path of the method.
    """
    violations = []
    for each in error.field_violations:
        parameter = parameter_of(path, each.field)
        if parameter == each.field:
            violations.append(each)
            continue
        error.message = _renamed(error.message, each.field, parameter)
        violations.append(replace(each, parameter=parameter))
    error.field_violations = tuple(violations)


def _renamed(message: str, field: str, parameter: str) -> str:
    """Replaces a field's name in a message where it is used as a name: in "text: is empty", not in "is the text of"."""
    return re.sub(rf"(?<![\w.\[]){re.escape(field)}(?=:)", lambda _: parameter, message)


def naming_parameters(path: str) -> Callable[[Callable[Params, ResultT]], Callable[Params, ResultT]]:
    """Makes a function that builds a method's request name parameters in its errors."""

    def decorate(build: Callable[Params, ResultT]) -> Callable[Params, ResultT]:
        @wraps(build)
        def run(*args: Params.args, **kwargs: Params.kwargs) -> ResultT:
            try:
                return build(*args, **kwargs)
            except DraftwireError as error:
                name_parameters(error, path)
                raise
            except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express
                raise InvalidFieldError(f"not valid Unicode: {error}", reason=ErrorReason.INVALID_FIELD) from error

        return run

    return decorate
