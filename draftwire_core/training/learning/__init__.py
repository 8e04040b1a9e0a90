"""Learning while serving: a draft model keeps learning from the texts of one verifier."""
