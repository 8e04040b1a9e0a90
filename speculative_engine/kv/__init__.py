"""KV slots: who holds which, and what is kept for prompts that begin alike."""
