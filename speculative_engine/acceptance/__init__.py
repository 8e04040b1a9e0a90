"""Which draft tokens are kept: what a request may ask for, and one rule a file beside the coupled one."""
