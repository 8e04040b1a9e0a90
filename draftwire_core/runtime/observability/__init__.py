"""Metrics, traces and step times."""
