"""KV slots: allocation, sharing among sequences, and reuse for prompts with a common prefix."""
