"""OpenAI-compatible HTTP in front of the SDK, and the console page."""
