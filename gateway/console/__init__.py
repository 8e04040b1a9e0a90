"""The console: a page that shows where each token comes from and manages the drafters, with its own small HTTP API."""
