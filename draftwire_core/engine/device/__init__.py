"""Devices: which one a model runs on, their memory, and copies between host and device."""
