"""The certificate of a check, and how it is shown."""
