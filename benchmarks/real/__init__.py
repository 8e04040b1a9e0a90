"""Real: small models that people publish, with prompts that people write."""
