"""Training of draft models and Medusa heads; see docs/training.md."""
