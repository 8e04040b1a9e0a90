"""The planner: it chooses the nodes that a step verifies, by their cost and their expected gain."""
