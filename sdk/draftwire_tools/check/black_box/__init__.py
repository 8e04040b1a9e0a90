"""The check of any OpenAI-compatible endpoint, from outside."""
