"""Labels of drafters, as calls give them."""

from __future__ import annotations

from collections.abc import Mapping

from service_runtime.errors import invalid_field

_MAX_LABELS = 16
_MAX_KEY_LENGTH = 64
_MAX_VALUE_LENGTH = 256


def read_labels(field: str, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a request's field. Raises ServiceError (INVALID_FIELD) when there is too much of them."""
    if len(labels) > _MAX_LABELS:
        raise invalid_field(field, f"has {len(labels)} labels, at most {_MAX_LABELS} are allowed")
    for key, value in labels.items():
        if not 1 <= len(key) <= _MAX_KEY_LENGTH:
            raise invalid_field(field, f"a key must have 1 to {_MAX_KEY_LENGTH} characters, got {len(key)}")
        if len(value) > _MAX_VALUE_LENGTH:
            raise invalid_field(f"{field}[{key!r}]", f"must have at most {_MAX_VALUE_LENGTH} characters")
    return dict(labels)
