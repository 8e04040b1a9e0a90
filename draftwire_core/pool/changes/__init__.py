"""Changes to the pool while requests run: attach, detach, swap, model replacement and rollout."""
