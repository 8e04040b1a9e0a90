"""Lookahead decoding: guesses of the target itself, computed in extra rows of its passes."""
