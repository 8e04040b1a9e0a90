"""One drafter of the pool: its stream, its limits and what is measured of it."""
