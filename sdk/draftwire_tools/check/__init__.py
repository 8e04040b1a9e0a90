"""``draftwire check``: a certificate that speculation does not change outputs."""
