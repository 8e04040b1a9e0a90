"""The target's tokenizer, and texts by tokens."""
