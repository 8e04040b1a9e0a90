"""``draftwire top``: a live view of verifiers and their drafters on a terminal."""
