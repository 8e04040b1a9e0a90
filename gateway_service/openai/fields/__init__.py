"""Types of the fields that requests share."""
