"""Data sets: prompts, and texts with the target's likeliest tokens."""
