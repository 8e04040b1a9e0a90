"""A model split among processes."""
