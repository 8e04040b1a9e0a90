"""The entry point of SGLang's plugin, which SGLang calls in each of its processes."""

from draftwire_core.adapters.sglang.plugin import NAME, register

__all__ = ["NAME", "register"]
