"""The contract's messages: requests built from the parameters of a call, and responses read."""
