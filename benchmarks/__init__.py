"""Benchmarks of promises and of speed, run from the repository's root by `python -m benchmarks.ROOM.NAME`."""
