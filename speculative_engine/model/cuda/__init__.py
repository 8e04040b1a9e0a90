"""Passes on a GPU: steps of fixed sizes, captured as graphs."""
