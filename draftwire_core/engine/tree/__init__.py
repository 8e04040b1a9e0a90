"""Token trees, and the proposals that grow them."""
