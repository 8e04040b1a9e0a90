"""Addresses of drafters inside the verifier: local:NAME?option=value&..."""

from __future__ import annotations

import dataclasses
from urllib.parse import parse_qsl, quote

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading.methods import METHODS, DraftedEngine, Method
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.runtime.errors import ServiceError, invalid_field, refused_field

OptionValue = int | bool | str

_SCHEME = "local:"
_MOST_DIGITS = 12


def read_local_address(field: str, address: str) -> str:
    """Returns the normalized form of a local address in a request's field: the given options, in their declared order.
    Raises ServiceError."""
    name, method, options = _parse(field, address)
    given = [each.name for each in dataclasses.fields(method.options) if each.name in options]
    text = "&".join(f"{option}={_text(options[option])}" for option in given)
    return f"{_SCHEME}{name}?{text}" if text else f"{_SCHEME}{name}"


def make_drafter(address: str, target: PackedModel, *, hub: bool, engine: DraftedEngine | None = None) -> Drafter:
    """Creates the drafter that a normalized address names; may be slow. hub: whether its model may be a hub id. engine:
    that it drafts for; None for one with the usual limits. Raises ServiceError."""
    _, method, options = _parse("address", address)
    try:
        with load_errors("cannot be made"):
            return method.make(method.options(**options), target, hub, engine or DraftedEngine())
    except ModelLoadError as error:
        raise ServiceError(
            grpc.StatusCode.FAILED_PRECONDITION,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"drafter {address}: {error}",
        ) from error


def _parse(field: str, address: str) -> tuple[str, Method, dict[str, OptionValue]]:
    name, _, query = address.removeprefix(_SCHEME).partition("?")
    method = METHODS.get(name)
    if method is None:
        known = ", ".join(_SCHEME + each for each in METHODS)
        description = (
            f"there is no drafter {address!r}; those in the verifier are {known} (a request's prediction needs none), "
            "and a service is given by its HOST:PORT"
        )
        raise refused_field(ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER, field, description)
    try:
        options = _options(method, query)
        method.options(**options)
    except FieldError as error:
        description = f"option {error.field} of {_SCHEME}{name} {error.description}"
        raise invalid_field(field, description) from error
    return name, method, options


def _options(method: Method, query: str) -> dict[str, OptionValue]:
    """Parses the options of an address. Raises FieldError whose field is the option."""
    defaults = {each.name: each.default for each in dataclasses.fields(method.options)}
    options: dict[str, OptionValue] = {}
    for option, text in parse_qsl(query, keep_blank_values=True):
        if option not in defaults:
            raise FieldError(repr(option), f"is unknown; the options are {', '.join(defaults)}")
        if option in options:
            raise FieldError(option, "is given twice")
        options[option] = _value(option, text, type(defaults[option]))
    return options


def _value(option: str, text: str, kind: type) -> OptionValue:
    if kind is bool:
        if text not in ("true", "false"):
            raise FieldError(option, f"must be true or false, got {text!r}")
        return text == "true"
    if kind is str:
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise FieldError(option, f"must be a whole number, got {text!r}")
    return int(text)


def _text(value: OptionValue) -> str:
    return quote(value, safe="/") if isinstance(value, str) else str(value).lower()
