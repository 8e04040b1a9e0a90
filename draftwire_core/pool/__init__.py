"""The drafter pool and the verifier's side of the Draft protocol, for this project's verifier or another engine."""
