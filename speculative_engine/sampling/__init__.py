"""Tokens drawn from logits, under noise that drafters share."""
