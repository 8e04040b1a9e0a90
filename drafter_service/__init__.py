"""The drafter service: grows token trees for any number of verifiers with a draft model."""
