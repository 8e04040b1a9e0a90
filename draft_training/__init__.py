"""Trains what drafts: see docs/methods.md."""
