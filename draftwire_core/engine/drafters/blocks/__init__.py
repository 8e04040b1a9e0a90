"""Drafters that guess a block of tokens in one pass, from features: DFlash and P-EAGLE."""
