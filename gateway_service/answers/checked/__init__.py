"""Arguments of calls, checked after the fact against what no grammar enforces."""
