"""Simulation: pipelines and fleets in virtual time."""
