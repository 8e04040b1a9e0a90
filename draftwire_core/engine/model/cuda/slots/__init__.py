"""Passes whose attention reads keys and values in place, by slot."""
