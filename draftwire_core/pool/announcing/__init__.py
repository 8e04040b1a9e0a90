"""Drafters that announce themselves: addresses, heartbeats, and the rules for accepting announcements."""
