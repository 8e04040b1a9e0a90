"""Runners for the peers' own environments: each imports nothing else of the project, except `run_draftwire`."""
