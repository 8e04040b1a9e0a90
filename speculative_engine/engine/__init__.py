"""The verifying engine: sequences, the steps of the target, and who drafts for whom."""
