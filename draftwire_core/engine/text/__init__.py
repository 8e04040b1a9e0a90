"""The target's tokenizer, and the texts and bytes of its tokens."""
