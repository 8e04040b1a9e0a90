"""Linear layers on CPUs: weights of every type, packed once."""
