"""What runs in the peers' own environments: it imports nothing of the project but `answering`."""
