"""Calls spelled in pieces found in the chat template: parsed, turned into JSON, and enforced."""
