"""An OpenAI-compatible HTTP gateway in front of a verifier: ``python -m gateway --verifier HOST:PORT``."""
