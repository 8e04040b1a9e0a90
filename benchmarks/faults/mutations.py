"""Random corruption of messages: of the fields of any protobuf message, and of the bytes of any message."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 1e-45, 3e38)
_TEXTS = ("", "a", "\0", "\u202e\U0001f600", "127.0.0.1:1", "local:ngram", "../../etc/passwd", "%s%n{}", "[::]:0")
_ELEMENTS = 8
"""Most elements of a list whose own fields are mutated."""
_GIANT = 20_000
"""Entries of a giant list of numbers."""


def mutate(message: MessageT, rng: random.Random) -> MessageT:
    """Returns a copy with a few fields corrupted: extreme numbers, unknown enum values, odd texts, lists that are
    empty, doubled, out of order or giant, parts that are missing or unexpected."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(copy))
        if places:  # some messages have no fields
            _spoil(*rng.choice(places), rng)
    return copy


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns bytes that are most likely no longer a valid message."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(spoilt) + 1)
        kind = rng.randrange(5)
        if kind == 0 and spoilt:
            spoilt[at % len(spoilt)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del spoilt[at:]
        elif kind == 2:
            spoilt[at:at] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 3:
            spoilt += spoilt[at:]
        else:
            spoilt = bytearray(rng.randbytes(rng.randrange(256)))
    return bytes(spoilt)


def mutate_order(messages: Sequence[MessageT], rng: random.Random) -> list[MessageT]:
    """Returns the messages with some missing, some doubled, some swapped."""
    changed = list(messages)
    for _ in range(rng.choice((0, 1, 1, 3))):
        if not changed:
            break
        here, there = rng.randrange(len(changed)), rng.randrange(len(changed))
        kind = rng.randrange(3)
        if kind == 0:
            changed.insert(there, changed[here])
        elif kind == 1:
            del changed[here]
        else:
            changed[here], changed[there] = changed[there], changed[here]
    return changed


def _places(message: Message) -> Iterator[tuple[Any, Any]]:
    """Yields every field of a message and its parts, set or not."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE or _is_map(field):
            continue
        if field.is_repeated:
            for part in getattr(message, field.name)[:_ELEMENTS]:
                yield from _places(part)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name))


def _spoil(owner: Any, field: Any, rng: random.Random) -> None:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        getattr(owner, field.name)[_value(key, rng)] = _value(value, rng)
    elif field.is_repeated:
        _spoil_list(getattr(owner, field.name), field, rng)
    elif rng.random() < 0.2:
        owner.ClearField(field.name)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        part = getattr(owner, field.name)
        part.SetInParent()
        _fill(part, rng)
    else:
        setattr(owner, field.name, _value(field, rng))


def _spoil_list(entries: Any, field: Any, rng: random.Random) -> None:
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    kept = list(entries)

    def make() -> Any:
        if not is_message:
            return _value(field, rng)
        part = field.message_type._concrete_class()
        _fill(part, rng)
        return part

    def replace() -> list[Any]:
        return [make() if rng.random() < 0.3 else entry for entry in kept]

    changes: list[Callable[[], list[Any]]] = [
        list,
        lambda: kept + kept,
        lambda: kept[:-1],
        lambda: rng.sample(kept, len(kept)),
        lambda: [*kept, make()],
        replace,
    ]
    if rng.random() < 0.05:
        count = 100 if is_message or field.cpp_type == FieldDescriptor.CPPTYPE_STRING else _GIANT
        changes = [lambda: [make()] * count]
    changed = rng.choice(changes)()
    del entries[:]
    entries.extend(changed)


def _fill(part: Message, rng: random.Random) -> None:
    """Sets a few fields to arbitrary values."""
    for field in part.DESCRIPTOR.fields:
        if rng.random() < 0.5 and not field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            setattr(part, field.name, _value(field, rng))


def _value(field: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        return rng.choice((low, low + 1, high, high - 1, 0, 1, 2, 3, rng.randint(low, high), rng.randrange(300)))
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((*_FLOATS, rng.uniform(-2, 2)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 77, -1, 2**31 - 1))
    text = rng.choice((*_TEXTS, "x" * rng.choice((10, 1000, 100_000))))
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
