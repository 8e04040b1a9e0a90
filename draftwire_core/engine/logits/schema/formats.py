"""Formats of strings in JSON schemas: which are enforced, how, and which say nothing about the text."""

from __future__ import annotations

ENFORCED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Formats that the grammar library knows."""
_UNRESERVED = r"[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"
_REFERENCE = (
    rf"^(?:[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-Fa-f]{{2}})*(?:\?(?:{_UNRESERVED}|[/?])*)?(?:#(?:{_UNRESERVED}|[/?])*)?$"
)
"""References without a scheme, which are those that a colon cannot spoil."""
_URI = rf"^[A-Za-z][A-Za-z0-9+.-]*:(?:{_UNRESERVED}|[/?])+(?:#(?:{_UNRESERVED}|[/?])*)?$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
_BASE64_URL = r"^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]={2}|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?$"
_POINTER = r"(?:/(?:[^/~\x00-\x1f]|~[01])*)*"
FORMAT_PATTERNS = {
    "byte": _BASE64,
    "base64": _BASE64,
    "base64url": _BASE64_URL,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "iri": _URI,
    "url": _URI,
    "json-pointer": rf"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})$",
}
"""Formats by patterns, each of which allows texts of the format alone, if not all of them."""
SAYING_NOTHING = frozenset(
    [
        "password",
        "binary",
        "path",
        "file-path",
        "directory-path",
        "textarea",
        "markdown",
        "html",
        "color",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int",
        "uint",
        "float",
        "double",
        "float32",
        "float64",
        "decimal",
        "number",
        "integer",
    ]
)
"""Formats that say how a value is shown or stored."""
