"""Models and drafters made ready to serve: loaded, tested and timed."""
