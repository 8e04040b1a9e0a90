"""Scale: many requests, several drafters, several verifiers."""
