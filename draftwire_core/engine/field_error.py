"""The error for an invalid value from a caller, with the name of the field."""


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
