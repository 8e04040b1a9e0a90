"""The routes of the HTTP API, and the state that they share."""
