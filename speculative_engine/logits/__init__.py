"""What a request may do to the target's logits: one kind of change a file, and forms of output."""
