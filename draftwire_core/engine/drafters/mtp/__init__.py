"""Multi-token prediction: layers in the target's own checkpoint that predict further tokens."""
