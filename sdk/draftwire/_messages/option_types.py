"""Type checks of a request's options, by their declared types; shared by all methods that take them.

The verifier checks ranges. A wrong type would otherwise fail while the message is built, with an error that names no
option.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsFloat

from draftwire._types.option import options_of
from draftwire._types.options import GenerateOptions
from draftwire._types.quoting import quoted, shortened
from draftwire._types.speculation import Acceptance, Planning, Preset, Speculation

Check = Callable[[str, Any], Any]
"""Function that takes an option's name and value and returns the converted value, or raises TypeError."""


def wrong_type(name: str, expected: str, value: object) -> TypeError:
    """Returns the error for a value of the wrong type.

    Args:
        name: name of the option, or of a part of it: ``prompt[3]``.
        expected: the expected type, with its article.
        value: the value given.
    """
    return TypeError(f"{name}: expected {expected}, got {quoted(value)} ({type(value).__name__})")


def whole(name: str, value: Any) -> int:
    """Returns an integer of any integral type, including numpy's. A bool is refused."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise wrong_type(name, "an int", value) from None


def number(name: str, value: Any) -> float:
    """Returns a number as a float. Bools and texts are refused."""
    try:
        if isinstance(value, SupportsFloat) and not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):  # an array, or an integer beyond a float's range
        pass
    raise wrong_type(name, "a number", value) from None


def flag(name: str, value: Any) -> bool:
    """Returns a bool; numpy's bools are converted."""
    plain = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
    if isinstance(plain, bool):
        return plain
    raise wrong_type(name, "True or False", value)


def text(name: str, value: Any) -> str:
    """Returns a string."""
    if isinstance(value, str):
        return value
    raise wrong_type(name, "a string", value)


def many(check: Check, expected: str, name: str, value: Any) -> list[Any]:
    """Returns a list of checked values."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(name, expected, value)
    return [check(f"{name}[{index}]", each) for index, each in enumerate(value)]


texts = partial(many, text, "a list of strings")


def token_ids(name: str, value: Any) -> list[int]:
    """Returns a list of integers. Plain ints take a fast path, for long prompts."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return list(value)
    return many(whole, "a list of token ids", name, value)


def pairs(check_key: Check, check_value: Check, expected: str, name: str, value: Any) -> dict[Any, Any]:
    """Returns a dictionary with checked keys and values."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, expected, value)
    return {
        check_key(f"a key of {name}", key): check_value(f"{name}[{quoted(key)}]", each) for key, each in value.items()
    }


def one_or(check: Check, kinds: type | tuple[type, ...]) -> Check:
    """Returns a check that passes values of some types and applies another check to the rest."""
    return lambda name, value: value if isinstance(value, kinds) else check(name, value)


def _schema(name: str, value: Any) -> Any:
    if isinstance(value, str | Mapping):
        return value
    raise wrong_type(name, "a JSON schema, as a string or a mapping", value)


def _drafters(name: str, value: Any) -> Any:
    if isinstance(value, str):  # refused later as a value, with a hint: probably meant as a list of one
        return value
    return texts(name, value) if isinstance(value, Iterable) else whole(name, value)


def _one_or_texts(name: str, value: Any) -> list[str]:
    return [value] if isinstance(value, str) else many(text, "a string or a list of strings", name, value)


def _speculation(name: str, value: Any) -> Speculation:
    if not isinstance(value, Speculation):
        raise wrong_type(name, "a Speculation", value)
    fields: dict[str, Any] = {}
    for field, option in options_of(Speculation).items():
        given = getattr(value, field)
        fields[field] = None if given is None else _CHECKS[option.type](f"{name}.{field}", given)
    return Speculation(**fields)


_CHECKS: dict[Any, Check] = {
    bool: flag,
    int: whole,
    float: number,
    str: text,
    Acceptance: text,  # names that are none are refused as values
    Planning: text,
    Preset: text,
    Iterable[int]: token_ids,
    Iterable[str]: one_or(texts, str),
    str | Iterable[str]: _one_or_texts,
    Mapping[int, float]: partial(pairs, whole, number, "a mapping of token ids to numbers"),
    Mapping[str, str]: partial(pairs, text, text, "a mapping of strings"),
    str | Mapping[str, Any]: _schema,
    int | Sequence[str]: _drafters,
    str | Sequence[int]: one_or(token_ids, str),
    Speculation: _speculation,
}
"""Checks by the declared types."""


def check_names(options: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for an option that does not exist."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TypeError(
                f"there is no option {shortened(name)!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with converted values; None, which stands for the default, is kept.

    Raises:
        TypeError: an option does not exist, or its value has the wrong type; the message names the option.
    """
    known = options_of(GenerateOptions)
    check_names(options, known)
    return {name: None if value is None else _CHECKS[known[name].type](name, value) for name, value in options.items()}
