"""Simulation: pipelines of drafting and verifying in virtual time."""
