"""Running requests: their text, their stop strings and the chunks of their responses."""
