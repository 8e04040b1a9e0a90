"""What trainings of drafters share that read a frozen target's hidden states."""
