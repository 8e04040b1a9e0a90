"""The gateway's HTTP layer: connections, checks before a request is read, event streams and errors."""
