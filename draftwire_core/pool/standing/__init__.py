"""The standing of a drafter: its measured gain, its faults, and the limits and pauses that follow from them."""
