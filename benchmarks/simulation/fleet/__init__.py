"""Fleets of verifiers and drafters in virtual time: `benchmarks/simulation/fleet_sim.py` is the command."""
