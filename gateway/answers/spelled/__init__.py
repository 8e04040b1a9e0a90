"""Calls spelled in pieces that the chat template gave away: read, turned into JSON, and enforced."""
