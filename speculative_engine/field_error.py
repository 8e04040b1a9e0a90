"""The one error for a value that a caller got wrong, naming the field."""


class FieldError(ValueError):
    """A field holds a value it may not hold.

    `field` is the dotted path as the caller wrote it (``sampling.top_p``), `description` says what is allowed
    and what was found. Services turn it into `google.rpc.BadRequest.FieldViolation` without parsing text.
    """

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        """Pickle by the two arguments; the default would pass the joined message alone."""
        return type(self), (self.field, self.description)
