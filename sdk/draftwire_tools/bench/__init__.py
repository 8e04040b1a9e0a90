"""``draftwire bench``: speculation methods compared on the same requests."""
