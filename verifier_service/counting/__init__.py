"""Counters of requests, steps and acceptance, reported in status and metrics."""
