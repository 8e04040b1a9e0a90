"""The roster of drafters, and the choice among them for each request."""
