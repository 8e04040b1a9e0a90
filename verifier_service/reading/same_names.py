"""Fields of a request that are read by name, into fields of the same names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def given(holder: type, message: Message) -> dict[str, Any]:
    """Returns the values that were given for the fields of a dataclass, by name: of optional fields of a message."""
    known = message.DESCRIPTOR.fields_by_name
    names = [each.name for each in fields(holder) if each.name in known and known[each.name].has_presence]
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def switches(holder: type, message: Message) -> dict[str, bool]:
    """Returns the values of a dataclass's fields that are switches of a message, given or not, by name."""
    known = message.DESCRIPTOR.fields_by_name
    names = [each.name for each in fields(holder) if each.name in known]
    return {
        name: getattr(message, name)
        for name in names
        if known[name].type == FieldDescriptor.TYPE_BOOL and not known[name].has_presence
    }
