"""Laws: what must hold whatever the drafters do."""
