"""What runs in the peers' own environments: it imports nothing else of the project, but for `run_draftwire`."""
