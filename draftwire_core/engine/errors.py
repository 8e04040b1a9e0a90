"""The errors that callers of the engine handle: an invalid value, and a model that cannot be loaded or served."""


class FieldError(ValueError):
    """A field has an invalid value.

    `field` is the dotted path as the caller wrote it (``sampling.top_p``), `description` states what is allowed and
    what was found. Services turn it into `google.rpc.BadRequest.FieldViolation` without parsing text.
    """

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        """Pickles the two arguments; the default would pass only the joined message."""
        return type(self), (self.field, self.description)


class ModelLoadError(Exception):
    """Raised if a model cannot be loaded or served; the message names it and the reason."""


class ModelMemoryError(ModelLoadError):
    """Raised for a model that could be served if there were enough memory."""
