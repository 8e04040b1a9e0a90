"""Drafting with a model of its own, in a service or in the verifier."""
