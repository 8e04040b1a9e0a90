"""Values that callers give and get: options, results, statuses, addresses. Nothing here makes a call."""
