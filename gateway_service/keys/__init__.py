"""Named keys of HTTP clients: what each may use, and what it has used."""
