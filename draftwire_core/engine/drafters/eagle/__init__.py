"""EAGLE-3: a small decoder on the target's inner hidden states."""
