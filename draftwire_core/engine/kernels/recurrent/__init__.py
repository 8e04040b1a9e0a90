"""Recurrent layers over token trees, in compiled code and in torch."""
