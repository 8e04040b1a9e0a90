"""Fleets of verifiers and drafters in virtual time; the command is `benchmarks/simulation/fleet_sim.py`."""
