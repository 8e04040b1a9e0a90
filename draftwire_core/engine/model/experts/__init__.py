"""Mixtures of experts, with the same bits for a row in any company."""
