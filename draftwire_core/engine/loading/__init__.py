"""Prepares models and drafters for serving: loads, tests and times them."""
