"""The common part of trainings of drafters that read a frozen target's hidden states."""
