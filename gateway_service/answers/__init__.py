"""Answers taken apart: content, reasoning and tool calls, in whatever way the served model spells them."""
