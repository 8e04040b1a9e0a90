"""Drafters whose networks read features: hidden states of the target, mapped to one vector a token."""
