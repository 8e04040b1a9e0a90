"""``draftwire demo``: a verifier and two drafters at work on this machine."""
