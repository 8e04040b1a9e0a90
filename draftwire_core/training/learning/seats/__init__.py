"""Places of the draft model that learns: in the verifier, or in a pair of drafter services."""
