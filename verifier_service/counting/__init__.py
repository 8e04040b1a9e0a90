"""Counters of requests, steps and acceptance, as status and metrics report them."""
