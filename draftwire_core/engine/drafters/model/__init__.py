"""Drafting with a draft model, in a drafter service or in the verifier."""
