"""Changes of the target's logits that a request may ask for, one kind a file; and structured output."""
