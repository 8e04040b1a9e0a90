"""Mixtures of experts, batch-invariant: a row has the same bits in any batch."""
