"""The standing of a drafter: its measured worth, its faults, and the limits and pauses that follow from them."""
