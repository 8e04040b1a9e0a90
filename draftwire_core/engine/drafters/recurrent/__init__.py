"""A small network on the target's last hidden state, which goes on from its own states."""
