"""Weights of few bits in a GPU's memory."""
