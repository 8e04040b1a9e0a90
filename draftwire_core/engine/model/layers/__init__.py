"""Decoder layers whose blocks run in compiled code."""
