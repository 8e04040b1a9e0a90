"""OpenAI-compatible HTTP in front of a verifier: ``python -m gateway --verifier HOST:PORT``."""
