"""A request while it runs: its text, its stop strings and the chunks that answer it."""
