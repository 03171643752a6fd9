"""The article that the course grew out of: its claims, and what settles each of them."""
