"""The versions of SGLang that the adapter fits."""

from __future__ import annotations

KNOWN = ("0.5.23",)
"""Versions whose interfaces the adapter was compared with (tests/draftwire_core/adapters/sglang/test_interface.py)."""


def unknown_version(version: str) -> str | None:
    """Returns what to warn of if the adapter was not compared with a version of SGLang; None if it was."""
    if any(version == known or version.startswith((f"{known}.", f"{known}+")) for known in KNOWN):
        return None
    return (
        f"SGLang {version} is unknown to draftwire_sglang, which fits {' and '.join(KNOWN)}: SGLang changes its "
        "workers between versions"
    )
