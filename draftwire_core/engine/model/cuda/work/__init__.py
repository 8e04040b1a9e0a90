"""The work of attention by slots, in pieces that a program of a kernel computes."""
