"""HTTP as the gateway speaks it: connections, checks before a request is read, event streams and errors."""
