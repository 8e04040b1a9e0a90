"""Writing of a request's options into its message, each by its path and the field's own type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from draftwire._messages.validation import UINT64_END, biases, duration, named, text_list, token_ids, unsigned
from draftwire._types.from_message import numbers_of
from draftwire._types.option import Option, options_of
from draftwire._types.options import GenerateOptions
from draftwire._types.quoting import quoted
from draftwire._types.speculation import RULES, Speculation
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb

_FORMS = "structured_output."
_JUMP_AHEAD = "jump_ahead"
"""The option of forms that is no form."""


def write_options(request: pb.GenerateRequest, options: Mapping[str, Any]) -> None:
    """Writes checked options into a request; those that are not given have their defaults.

    Raises:
        InvalidFieldError: a value cannot be encoded, or there is more than one output format.
        TokenOutOfRangeError: a token id is negative or exceeds 32 bits.
    """
    known = options_of(GenerateOptions)
    of_forms = {name for name, option in known.items() if (option.path or "").startswith(_FORMS)}
    forms = sorted(name for name in of_forms - {_JUMP_AHEAD} if options.get(name) not in (None, False))
    if len(forms) > 1:
        raise invalid_field("structured_output", f"has more than one form: {', '.join(forms)}")
    asked = known.keys() - of_forms - {"speculation"} | ({*forms, _JUMP_AHEAD} if forms else set())
    for name, option in known.items():
        value = options.get(name, option.default)
        if name in asked and value is not None:
            _write(request, option, value)
    _write_speculation(request, options.get("speculation") or Speculation())


def _write_speculation(request: pb.GenerateRequest, speculation: Speculation) -> None:
    for name, option in options_of(Speculation).items():
        value = getattr(speculation, name)
        if value is not None and name in _SPECULATION:
            _SPECULATION[name](request, value)
        elif value is not None:
            _write(request, option, value)
    if speculation.acceptance is None and speculation.preset is None:  # a preset implies its rule
        request.speculation.acceptance = RULES["coupled"]


def _write_drafters(request: pb.GenerateRequest, drafters: int | Sequence[str]) -> None:
    """Writes the number of drafters, or their names."""
    if isinstance(drafters, str):
        raise invalid_field("speculation.drafters", f"expected a number or a list of names, got {quoted(drafters)}")
    if isinstance(drafters, int):
        _write(request, options_of(Speculation)["drafters"], drafters)
    else:
        request.speculation.drafter_names.extend(drafters)


def _write_prediction(request: pb.GenerateRequest, prediction: str | Sequence[int]) -> None:
    message = request.speculation.prediction
    message.SetInParent()
    if isinstance(prediction, str):
        message.text = prediction
    else:
        message.token_ids.extend(token_ids("speculation.prediction.token_ids", prediction))


_SPECULATION: dict[str, Callable[[pb.GenerateRequest, Any], None]] = {
    "drafters": _write_drafters,
    "prediction": _write_prediction,
}
"""Options that one of several fields has."""


def _write(request: Message, option: Option, value: Any) -> None:
    """Writes a value into the field of its option, if there is one."""
    if option.path is None:
        return
    *parents, name = option.path.split(".")
    message: Any = request
    for parent in parents:
        message = getattr(message, parent)
    field: FieldDescriptor = message.DESCRIPTOR.fields_by_name[name]
    kind = field.message_type and field.message_type.full_name
    if kind and field.message_type.GetOptions().map_entry:
        numbered = field.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_UINT32
        getattr(message, name).update(biases(option.path, value) if numbered else value)
    elif kind == "google.protobuf.Duration":
        getattr(message, name).FromTimedelta(duration(option.path, value))
    elif kind == "draftwire.v1.Choices":
        getattr(message, name).texts.extend(text_list(option.path, value))
        getattr(message, name).SetInParent()
    elif hasattr(getattr(message, name), "extend"):
        numbered = field.type == FieldDescriptor.TYPE_UINT32
        getattr(message, name).extend(token_ids(option.path, value) if numbered else text_list(option.path, value))
    else:
        setattr(message, name, _single(field, option, value))


def _single(field: FieldDescriptor, option: Option, value: Any) -> Any:
    path, least = option.path or "", int(option.range.least or 0)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return named(path, numbers_of(option.type, field.enum_type), value)
    if field.type == FieldDescriptor.TYPE_UINT32:
        return unsigned(path, value, least=least)
    if field.type == FieldDescriptor.TYPE_UINT64:
        return unsigned(path, value, UINT64_END, least=least)
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
        try:
            return json.dumps(dict(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{option.name}: expected values of JSON: {error}") from error
    return value
