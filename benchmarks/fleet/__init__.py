"""Fleets of verifiers and drafters in virtual time: `benchmarks/fleet_sim.py` is the command."""
