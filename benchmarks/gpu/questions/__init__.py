"""Questions for a GPU, which is rarely at hand: scripts of at most four minutes, in the order of their numbers."""
