"""Faults: services under failures, hostile peers and hostile input."""
