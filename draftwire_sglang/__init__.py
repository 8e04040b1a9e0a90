"""The name of SGLang's plugin, which its entry point has; the adapter itself is `draftwire_core.adapters.sglang`."""
