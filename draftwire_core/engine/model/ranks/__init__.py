"""Tensor parallelism: a model split among processes."""
