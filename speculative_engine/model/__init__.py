"""Passes of a Hugging Face decoder over rows of many sequences, packed into one batch."""
