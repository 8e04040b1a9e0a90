"""Drafters that register themselves: their addresses, heartbeats and the rules for both."""
