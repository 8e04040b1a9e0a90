"""Sampling of tokens from logits, with noise that drafters can reproduce."""
