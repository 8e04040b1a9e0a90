"""The routes of the HTTP API and their shared state."""
