"""Drafting from texts that are known already, without a model."""
