"""``draftwire demo``: a verifier and two drafters on this machine, and what they do together."""
