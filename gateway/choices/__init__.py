"""The choices of a request: admitted, generated side by side, and put into one response."""
