"""Admission of requests: limits per caller and the expected wait."""
