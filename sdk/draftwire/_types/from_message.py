"""Results read from messages: the fields that a dataclass declares say what is read, and as what.

A field is read from the message's field of its own name, or of the one that its declaration names: ``seconds:
Annotated[float, From("time")]``. A duration becomes seconds, a timestamp a datetime in UTC, a status an error, the
number of an enum its name in a ``Literal``, and a message the dataclass declared for it. A field that the message lacks
gets its default, or None if it may be None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC
from functools import cache, partial
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from draftwire.errors import from_status

ResultT = TypeVar("ResultT")
Reading = Callable[[Any], Any]
"""Function that reads one field of a message; it returns MISSING to leave the field to its default."""

_UNKNOWN = "unknown"
"""Name that a ``Literal`` may have for numbers of its enum that are newer than this SDK."""
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Duration": lambda duration: duration.ToNanoseconds() / 1e9,
    "google.protobuf.Timestamp": lambda timestamp: timestamp.ToDatetime(tzinfo=UTC),
    "google.rpc.Status": from_status,
}
"""Conversions of messages that no dataclass stands for."""


@dataclass(frozen=True, slots=True)
class From:
    """The message's field that a result's field is read from, if it has another name."""

    name: str
    """Name of the message's field."""


class _Newer(Exception):
    """The number of an enum is newer than this SDK, and the result has nothing to stand for it."""


def read(kind: type[ResultT], *messages: Message, **given: Any) -> ResultT:
    """Returns a result from messages.

    Args:
        kind: the result's dataclass.
        messages: the messages; each field is read from the first one that has it.
        given: values of fields that are not read.
    """
    plan = _plan(cast(Any, kind), tuple(each.DESCRIPTOR for each in messages), frozenset(given))
    found = {name: read_field(messages[index]) for name, index, read_field in plan}
    return kind(**given, **{name: value for name, value in found.items() if value is not MISSING})


def read_all(kind: type[ResultT], messages: Iterable[Message]) -> list[ResultT]:
    """Returns the results from messages, without those that are of a kind newer than this SDK."""
    found = []
    for message in messages:
        try:
            found.append(read(kind, message))
        except _Newer:
            continue
    return found


@cache
def numbers_of(names: Any, enum: EnumDescriptor) -> dict[Any, Any]:
    """Returns the numbers of an enum by their names in a ``Literal``: ``"coupled"`` for ACCEPTANCE_RULE_COUPLED."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    numbers = {each.name.removeprefix(prefix).lower(): each.number for each in enum.values}
    return {name: numbers[name] for name in get_args(names) if name in numbers}


@cache
def _plan(kind: Any, messages: tuple[Descriptor, ...], given: frozenset[str]) -> list[tuple[str, int, Reading]]:
    """Returns the name of each field that is read, the index of its message, and its reading.

    Raises:
        AttributeError: no message has the field.
    """
    plan = []
    declared, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    for own in fields(kind):
        notes = getattr(declared[own.name], "__metadata__", ())
        name = next((note.name for note in notes if isinstance(note, From)), own.name)
        having = [index for index, message in enumerate(messages) if name in message.fields_by_name]
        if own.name in given:
            continue
        if not having:
            raise AttributeError(f"{kind.__name__}.{own.name}: no field {name} in {[each.name for each in messages]}")
        field = messages[having[0]].fields_by_name[name]
        plan.append((own.name, having[0], _reading(field, plain[own.name], own)))
    return plan


def _reading(field: FieldDescriptor, kind: Any, own: Field[Any]) -> Reading:
    """Returns the reading of a message's field as the declared type of a result's own field."""
    name, parts = field.name, get_args(kind)
    if (collection := get_origin(kind)) in (list, frozenset, dict, Mapping):
        items: list[Any] = [each for each in (parts[0], *get_args(parts[0])) if is_dataclass(each)]
        collect: Any = partial(read_all, items[0]) if items else dict if collection is Mapping else collection
        return lambda message: collect(getattr(message, name))
    without: list[Any] = [None] if NoneType in parts else []
    convert = _conversion(field, next(each for each in parts if each is not NoneType) if without else kind)
    if own.default is not MISSING or own.default_factory is not MISSING:
        without = [MISSING]

    def read_field(message: Any) -> Any:
        if without and field.has_presence and not message.HasField(name):
            return without[0]
        try:
            return convert(getattr(message, name))
        except _Newer:
            if not without:
                raise
            return without[0]

    return read_field


def _conversion(field: FieldDescriptor, kind: Any) -> Callable[[Any], Any]:
    if get_origin(kind) is Literal:
        names = {number: name for name, number in numbers_of(kind, field.enum_type).items()}
        return partial(_name_of, names, _UNKNOWN if _UNKNOWN in get_args(kind) else None)
    if is_dataclass(kind):
        return partial(read, cast(Any, kind))
    return _CONVERSIONS.get(field.message_type.full_name if field.message_type else "", lambda value: value)


def _name_of(names: Mapping[int, str], unknown: str | None, number: int) -> str:
    name = names.get(number, unknown)
    if name is None:
        raise _Newer(number)
    return name
