"""The flags of a request's options, made from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from draftwire._types.option import Option, options_of
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import Acceptance, Planning, Preset, Speculation
from draftwire.cli.options import parse_labels, parse_logit_bias

_NOT = "--no-"
_ONE: dict[Any, type] = {
    int: int,
    float: float,
    str: str,
    Acceptance: str,
    Planning: str,
    Preset: str,
    str | Mapping[str, Any]: str,
    int | Sequence[str]: int,
    str | Sequence[int]: str,
}
"""Types of the values of flags that are given once, by the options' types."""


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of a request's options to a command, which gets the options as its keyword argument ``options``:
    those that were given, and those with a default."""
    found = {**options_of(GenerateOptions), **options_of(Speculation)}
    return _with_flags(command, {name: option for name, option in found.items() if option.help})


def asking_for(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the flags of some options, with defaults of their own; otherwise does as ``asking``."""
    known = options_of(GenerateOptions)
    declared = {name: replace(known[name], default=default) for name, default in defaults.items()}
    return lambda command: _with_flags(command, declared)


def _with_flags(command: Callable[..., None], declared: Mapping[str, Option]) -> Callable[..., None]:
    @wraps(command)
    def run(**values: Any) -> None:
        given = {name: _value(option, values.pop(name)) for name, option in declared.items()}
        command(**values, options=_options({name: value for name, value in given.items() if value is not None}))

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
    added = [_parameter(option) for option in declared.values()]
    keywords = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
    plain = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    run.__signature__ = signature.replace(parameters=[*plain, *added, *keywords])  # type: ignore[attr-defined]
    return run


def _options(given: dict[str, Any]) -> GenerateOptions:
    """Returns the options of a request. Names that are none are refused when the request is made."""
    names = given.pop("drafter", None) or []
    if len(names) == 1:
        given["drafter"] = names[0]
    elif names:
        given["drafters"] = names
    speculation = {name: given.pop(name) for name in options_of(Speculation) if name in given}
    return cast(GenerateOptions, {**given, "speculation": Speculation(**speculation)})


def _parameter(option: Option) -> inspect.Parameter:
    kind, metavar, default = _form(option)
    note = typer.Option(option.flag, metavar=metavar, help=option.help)
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, note]
    )


def _form(option: Option) -> tuple[Any, str | None, Any]:
    """Returns the type, the metavar and the default of an option's flag."""
    if option.type is bool:
        return bool, None, False
    if option.type == Mapping[int, float]:
        return list[str] | None, "ID=VALUE", None
    if option.type == Mapping[str, str]:
        return list[str] | None, "KEY=VALUE", None
    if option.type == Iterable[int]:
        return list[int] | None, None, None
    if option.many or option.type in (Iterable[str], str | Iterable[str]):
        return list[str] | None, None, None
    return _ONE[option.type] | None, "FILE|TEXT" if option.file else None, option.default


def _value(option: Option, value: Any) -> Any:
    """Returns an option's value for its flag's; None if the flag was not given."""
    if option.type is bool:
        return not option.flag.startswith(_NOT) if value else None
    if value is None or value == []:
        return None
    if option.type == Mapping[int, float]:
        return parse_logit_bias(value)
    if option.type == Mapping[str, str]:
        return parse_labels(value)
    return _text_or_file(value) if option.file else value


def _text_or_file(given: str) -> str:
    """Returns the text of the file with this name, or the argument itself if there is no such file."""
    try:
        return Path(given).read_text(encoding="utf-8-sig")  # without the mark that some editors begin with
    except (OSError, ValueError):  # a text may be longer than a name can be, or hold what a name cannot
        return given
