"""The choice of a drafter for each request, and the roster that it is made from."""
