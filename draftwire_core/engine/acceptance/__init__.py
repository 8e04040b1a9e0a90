"""Acceptance rules: which draft tokens a request keeps. Start reading at `coupled`, the default."""
