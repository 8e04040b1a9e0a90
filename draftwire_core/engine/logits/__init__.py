"""Changes to the target's logits that a request may ask for: logits processors and structured output."""
