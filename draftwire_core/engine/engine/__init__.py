"""The verification engine: its sequences, the target's steps, and the assignment of drafters to sequences."""
