"""The errors for models that cannot be loaded or served."""


class ModelLoadError(Exception):
    """Raised if a model cannot be loaded or served; the message names it and the reason."""


class ModelMemoryError(ModelLoadError):
    """Raised for a model that could be served if there were enough memory."""
