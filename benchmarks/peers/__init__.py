"""Peers: other inference engines with the same models."""
