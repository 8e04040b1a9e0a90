"""Drafting from known texts, without a model."""
