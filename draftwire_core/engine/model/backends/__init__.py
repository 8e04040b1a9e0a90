"""Backends of a model: a CPU, a GPU, or a group of ranks that each hold a part of it."""
