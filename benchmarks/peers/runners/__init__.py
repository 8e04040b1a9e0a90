"""What runs in the peers' own environments: but for `run_draftwire`, modules here import nothing else of the project."""
