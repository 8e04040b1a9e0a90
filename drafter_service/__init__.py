"""The drafter service: a draft model that grows the token trees of any number of verifiers."""
