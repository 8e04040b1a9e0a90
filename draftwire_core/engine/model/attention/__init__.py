"""Attention over KV slots, and the positions and angles that it computes with."""
