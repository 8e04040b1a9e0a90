"""An OpenAI-compatible HTTP gateway in front of a verifier: ``python -m gateway_service --verifier HOST:PORT``."""
