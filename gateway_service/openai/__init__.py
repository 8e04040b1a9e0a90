"""Requests and responses in the shapes of OpenAI's API, with vLLM's extensions."""
