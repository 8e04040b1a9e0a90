"""Makes Triton's interpreter some times quicker: it prepares the language anew for each call of each function."""

from __future__ import annotations

from types import FunctionType


def _all_of_it(tl, core):  # type: ignore[no-untyped-def]
    """A function that sees all modules that the interpreter prepares."""


def quicken() -> None:
    """Prepares the language once and for all of this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang
    if prepare is _prepared:
        return
    prepare(FunctionType(_all_of_it.__code__, {"tl": tl, "core": tl.core}))
    interpreter._patch_lang = _prepared


def _prepared(function: object) -> object:
    """Nothing to be done, nor undone."""
    from triton.runtime import interpreter

    return interpreter._LangPatchScope()
