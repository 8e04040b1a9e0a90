"""Calls to verifiers and drafter services: channels, deadlines, retries, streams that resume."""
