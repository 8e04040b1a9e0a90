"""The console: a page that shows the source of each token and manages the drafters, with its own small HTTP API."""
