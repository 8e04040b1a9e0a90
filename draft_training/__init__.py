"""Trains what drafts: see docs/training.md."""
