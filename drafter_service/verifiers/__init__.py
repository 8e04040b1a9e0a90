"""The verifiers of a drafter: announcing to them and sharing drafting time among them."""
