"""The console: a page that shows the source of each token and manages the drafters, with a small HTTP API of its
own."""
