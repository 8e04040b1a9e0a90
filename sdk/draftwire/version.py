"""The version of draftwire."""

__version__ = "0.1.0"
