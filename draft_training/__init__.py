"""Trains draft models on what a target says."""
