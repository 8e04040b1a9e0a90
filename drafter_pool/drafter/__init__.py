"""One drafter of the pool: its stream, its limits and its measurements."""
