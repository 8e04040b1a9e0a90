"""How many drafted nodes a step verifies, by what they cost and what they bring."""
