"""Texts of the target to learn from: served ones and its own, on disk, and as the draft model reads them."""
