"""Features: what drafters get of the hidden states of a target."""
