"""Changes of the pool while requests run: attach, detach, swap, new models and rollouts."""
