"""Lookahead decoding: the target's own guesses, made in rows beside the ones that it verifies."""
