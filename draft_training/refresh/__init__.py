"""Draft models that keep up with the traffic."""
