"""DFlash drafters, trained on the target that they draft for."""
