"""The choices of a request: their admission, concurrent generation, and joint response."""
