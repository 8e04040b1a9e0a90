"""Medusa heads, trained on the target that they draft for."""
