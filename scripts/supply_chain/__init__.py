"""Checks of what draftwire is made of: its packages, their licences, and a list of them (SBOM)."""
