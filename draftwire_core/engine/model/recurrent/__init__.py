"""Recurrent layers in packed passes: their kinds, and the work that a batch gives them."""
