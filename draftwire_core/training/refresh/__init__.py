"""Continual training of draft models on a verifier's traffic."""
