"""EAGLE-3 drafters, trained on the target that they draft for."""
