"""JSON schemas in the terms that the grammar library enforces."""
