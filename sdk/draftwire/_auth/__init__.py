"""Transport security and bearer tokens of a client, from files that may change while it runs."""
