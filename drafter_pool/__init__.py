"""The pool of drafters, and how a verifier talks to them: for whatever verifies, ours or another engine."""
