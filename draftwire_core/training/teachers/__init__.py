"""Targets that a draft model learns from: in this process, or a running verifier."""
