"""TLS, accepted tokens, and the roles of callers."""
