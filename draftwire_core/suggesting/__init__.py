"""The choice of a drafter for a target by its files alone: it imports no torch and reads no weights."""
