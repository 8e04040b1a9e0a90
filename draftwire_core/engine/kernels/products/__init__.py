"""Products of rows and packed weights in compiled code."""
